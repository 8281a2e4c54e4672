"""The time of every pass as a bar."""

from __future__ import annotations

from collections.abc import Mapping

from kernelweld.cli.html.markup import Html, element


def pass_times(seconds: Mapping[str, float]) -> Html:
    longest = max(seconds.values(), default=0.0) or 1.0
    rows = [_row(name, taken, taken / longest) for name, taken in seconds.items()]
    table = element("table", element("tbody", *rows), class_="times")
    return element("section", element("h2", "Passes"), table, id="passes")


def _row(name: str, taken: float, share: float) -> Html:
    bar = element("span", class_="bar-of-time", style=f"width:{100 * share:.2f}%")
    return element(
        "tr", element("th", name, scope="row"), element("td", bar), element("td", f"{taken * 1e3:.1f} ms")
    )
