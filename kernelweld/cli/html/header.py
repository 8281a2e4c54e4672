"""The head of the page: what was looked at, and what came of it in figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelweld.cli.html.markup import Html, element, joined
from kernelweld.cli.layers import Block
from kernelweld.cli.reported import Shown

_KINDS = (("weld", "welds"), ("library", "GEMM, attention, other calls"), ("generated", "Inductor’s kernels"))


def header(shown: Shown) -> Html:
    facts = [joined((element("dt", name), element("dd", value))) for name, value in shown.facts.items()]
    return element(
        "header",
        element("h1", shown.target),
        element("dl", *(element("div", fact) for fact in facts), class_="facts"),
        element("div", _headline(shown), _bars(shown), class_="hero"),
        element("dl", *_figures(shown), class_="figures"),
    )


def _headline(shown: Shown) -> Html:
    before, after = shown.launches.before, shown.launches.after
    share = f", {(before - after) / before:.0%}" if before and after < before else ""
    arrow = element("span", "→", class_="arrow", aria_label="to")
    numbers = element("p", str(before), arrow, element("strong", str(after)), class_="numbers")
    return element(
        "div", numbers, element("p", f"kernel launches, {_change(before - after)}{share}", class_="of")
    )


def _change(saved: int) -> str:
    if saved == 0:
        return "as many as before"
    return f"{abs(saved)} {'fewer' if saved > 0 else 'more'}"


def _bars(shown: Shown) -> Html:
    rows = {
        "Inductor": [block for layer in shown.layers for block in layer.before],
        "with kernelweld": [block for layer in shown.layers for block in layer.after],
    }
    longest = max(map(len, rows.values()), default=0) or 1
    bars = [joined((element("dt", name), _bar(blocks, longest))) for name, blocks in rows.items()]
    keys = [element("li", element("i", class_=f"key {kind}"), name) for kind, name in _KINDS]
    return element("div", element("dl", *bars, class_="bars"), element("ul", *keys, class_="keys"))


def _bar(blocks: Sequence[Block], longest: int) -> Html:
    parts = []
    for kind, name in _KINDS:
        count = sum(block.kind == kind for block in blocks)
        if count:
            width = f"width:{100 * count / longest:.3f}%"
            label = element("span", str(count), element("span", f" {name}", class_="unseen"))
            parts.append(element("span", label, class_=f"part {kind}", style=width, title=f"{count} {name}"))
    return element("dd", *parts)


def _figures(shown: Shown) -> Iterator[Html]:
    found = sum(count for count, _ in shown.words.values())
    welded = sum(count for _, count in shown.words.values())
    welds = sum(weld.count for weld in shown.welds)
    alike = len(shown.welds)
    misses = sum(one.count for one in shown.misses)
    yield _figure(str(welds), "welds", f"of {alike} kernel{'' if alike == 1 else 's'}")
    yield _figure(str(found), "words", f"{welded} of them in welds")
    yield _figure(str(misses), "not welded", f"for {len(shown.misses)} reasons")
    yield _figure(f"{sum(shown.seconds.values()):.1f} s", "of passes", f"over {shown.calls} calls")


def _figure(number: str, name: str, more: str) -> Html:
    return element("div", element("dt", name), element("dd", element("b", number), element("span", more)))
