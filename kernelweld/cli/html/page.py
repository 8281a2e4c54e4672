"""The report's page, put together from its sections."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from kernelweld.cli.html.header import header
from kernelweld.cli.html.layer_map import layer_map
from kernelweld.cli.html.markup import Html, element, joined
from kernelweld.cli.html.miss_list import miss_list
from kernelweld.cli.html.pass_times import pass_times
from kernelweld.cli.html.weld_cards import weld_cards
from kernelweld.cli.reported import Shown

_SECTIONS = (("layers", "Layers"), ("welds", "Welds"), ("misses", "Not welded"), ("passes", "Passes"))
#: Before anything is drawn, so that a chosen scheme does not flash the other.
_SCHEME = (
    'try{document.documentElement.dataset.scheme=localStorage.getItem("kernelweld-scheme")||"auto"}catch(e){}'
)


def page(shown: Shown) -> str:
    """The whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{shown.target} · kernelweld report"),
        element("style", _resource("report.css")),
        element("script", Html(_SCHEME)),
    )
    main = element(
        "main",
        header(shown),
        _failures([*shown.failures, *(f"graph break: {reason}" for reason in shown.breaks)]),
        layer_map(shown),
        weld_cards(shown),
        miss_list(shown.misses),
        pass_times(shown.seconds),
        id="content",
    )
    body = element("body", _bar(), main, _footer(shown), element("script", _resource("report.js")))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _bar() -> Html:
    links = [element("a", name, href=f"#{where}") for where, name in _SECTIONS]
    button = element("button", "Scheme: auto", type="button", id="scheme", hidden=True)
    return element(
        "div",
        element("a", "Skip to the report", href="#content", class_="skip"),
        element("a", "kernelweld", href="#content", class_="mark"),
        element("nav", *links, aria_label="Sections"),
        button,
        class_="bar",
    )


def _failures(failures: Iterable[str]) -> Html:
    return joined(element("pre", failure, class_="failure", role="note") for failure in failures)


def _footer(shown: Shown) -> Html:
    versions = joined((f"{name} {number}" for name, number in shown.versions.items()), " · ")
    note = (
        "Launches are predicted, those of Inductor on CUDA for one run of the graph. A launch counts for the "
        "layer that most of what it writes is of. Registers and spills are per thread, shared memory is per "
        "program."
    )
    return element("footer", element("p", note), element("p", versions, " · ", shown.date))


def _resource(name: str) -> Html:
    return Html(files("kernelweld.cli.html").joinpath(name).read_text(encoding="utf-8"))
