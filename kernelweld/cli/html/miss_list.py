"""What is not welded, and why: words that were left out, and what is nearly a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelweld.cli.html.listing import listing
from kernelweld.cli.html.markup import Html, element
from kernelweld.cli.reported import MissShown

_PREFIX = "not welded: "
_PARTS = (
    ("Words that are not welded", ("cost", "legality", "numerics", "layout")),
    ("Nearly a word", ("pattern", "operator")),
)


def miss_list(misses: Sequence[MissShown]) -> Html:
    parts = [
        part for title, rules in _PARTS for part in _part(title, [m for m in misses if m.miss.rule in rules])
    ]
    nothing = element("p", "Everything that was recognised is welded.", class_="intro")
    return element("section", element("h2", "Not welded"), *(parts or [nothing]), id="misses")


def _part(title: str, misses: Sequence[MissShown]) -> Iterator[Html]:
    if misses:
        total = sum(one.count for one in misses)
        yield element("h3", title, " ", element("span", str(total), class_="count"))
        yield element("ul", *map(_miss, misses), class_="misses")


def _miss(one: MissShown) -> Html:
    miss = one.miss
    reason = miss.reason.removeprefix(_PREFIX)
    head = element(
        "div",
        element("code", miss.kind, class_="name"),
        element("span", f"× {one.count}", class_="times-of"),
        element("span", miss.rule, class_="rule"),
    )
    facts = [
        element("p", f"{reason[:1].upper()}{reason[1:]}.", class_="reason"),
        element("p", element("b", "What to change "), miss.remedy, class_="remedy") if miss.remedy else "",
        listing(one.code),
        element("p", _nodes(one), class_="nodes"),
    ]
    return element("li", head, element("div", *facts), data_filter=True)


def _nodes(one: MissShown) -> str:
    miss = one.miss
    node = f"node %{miss.node or miss.anchor}"
    anchor = f", read from %{miss.anchor}" if miss.node not in ("", miss.anchor) else ""
    more = f", and {one.count - 1} more alike" if one.count > 1 else ""
    return node + anchor + more
