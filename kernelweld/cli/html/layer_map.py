"""The layer map: every layer as a cell, and each kind of layer once with its launches before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelweld.cli.code import shown_file
from kernelweld.cli.html.markup import Html, element, joined
from kernelweld.cli.layers import Block, Layer, alike, kinds, letter, numbers, stretches
from kernelweld.cli.reported import Shown

_KINDS = {"weld": "weld", "library": "library call", "generated": "Inductor kernel"}
_INTRO = (
    "Each cell is a layer with the launches it saves, darker the larger their share; layers of one letter "
    "have the same launches. Below, each kind of layer once: Inductor’s launches above, those with "
    "kernelweld under them. A weld is drawn as wide as what stood in its place."
)
_HINT = "Point at a launch, or reach it by Tab and the arrow keys, to see what it is."


def layer_map(shown: Shown) -> Html:
    kind = kinds(shown.layers)
    rows = [layer for layer in shown.layers if layer.number is not None]
    cells = [_cell(layer, letter(kind[layer.name])) for layer in rows]
    groups = [_group(key, group) for key, group in alike(shown.layers).items()]
    return element(
        "section",
        element("h2", "Layers"),
        element("p", _INTRO, class_="intro") if rows else "",
        element("ol", *cells, class_="cells") if rows else "",
        element("p", _HINT, class_="intro"),
        *groups,
        id="layers",
    )


def _cell(layer: Layer, key: str) -> Html:
    share = layer.saved / len(layer.before) if layer.before else 0.0
    label = f"{layer.name}: {len(layer.before)} launches to {len(layer.after)}, kind {key}"
    link = element(
        "a",
        element("span", str(layer.number), class_="no"),
        element("b", f"−{layer.saved}" if layer.saved >= 0 else f"+{-layer.saved}"),
        element("span", key, class_="letter"),
        href=f"#kind-{key}",
        title=label,
        aria_label=label,
        data_kind=key,
        style=f"--share:{min(max(share, 0.0) * 140, 100):.0f}%",
    )
    return element("li", link)


def _group(key: str, group: Sequence[Layer]) -> Html:
    first = group[0]
    is_layer = first.number is not None
    badge = element("span", key, class_="letter") if is_layer else ""
    title = element("h3", badge, *(_numbers(group) if is_layer else [f"{key[:1].upper()}{key[1:]}"]))
    saved = element("p", str(len(first.before)), " → ", element("b", str(len(first.after))), " launches")
    return element(
        "article",
        element("div", title, saved, class_="top"),
        _strip(first),
        _listed(first),
        class_="kind",
        id=f"kind-{key}" if is_layer else None,
    )


def _numbers(group: Sequence[Layer]) -> Iterator[Html]:
    """Their numbers, by the list they are of."""
    for name, which in numbers(group).items():
        yield element("span", f"Layer{'s' if len(group) > 1 else ''} {which}")
        yield element("span", name, class_="where")


def _strip(layer: Layer) -> Html:
    parts = [
        element("div", _row(one.before, "Inductor"), _row(one.after, "with kernelweld"), class_="st")
        for one in stretches(layer)
    ]
    labels = element("div", element("span", "Inductor"), element("span", "with kernelweld"), class_="labels")
    return element("div", labels, element("div", *parts, class_="flow"), class_="strip")


def _row(blocks: Sequence[Block], when: str) -> Html:
    return element("div", *(_block(block, when) for block in blocks), class_="row")


def _block(block: Block, when: str) -> Html:
    tip = element("span", element("em", when), *_words(block), class_="tip")
    if block.weld is not None:
        number = element("span", str(block.weld + 1), class_="number")
        return element("a", number, tip, href=f"#weld-{block.weld + 1}", class_="block weld")
    return element("button", tip, type="button", class_=f"block {block.kind}")


def _words(block: Block) -> Iterator[Html]:
    number = f" {block.weld + 1}" if block.weld is not None else ""
    yield element("b", f"{_KINDS[block.kind]}{number}")
    yield element("code", block.name)
    if block.module:
        yield element("span", block.module)
    if block.source is not None:
        yield element("span", _place(block.source))


def _place(source: str) -> str:
    path, _, line = source.rpartition(":")
    return f"{shown_file(path).rpartition('/')[2]}:{line}"


def _listed(layer: Layer) -> Html:
    """The launches as two lists, for those who read rather than point."""
    columns = [
        element("div", element("h4", title), element("ol", *(_item(block) for block in row)))
        for title, row in (("Inductor", layer.before), ("With kernelweld", layer.after))
    ]
    return element("details", element("summary", "As a list"), element("div", *columns, class_="columns"))


def _item(block: Block) -> Html:
    what = element("code", block.name)
    if block.weld is not None:
        what = element("a", what, href=f"#weld-{block.weld + 1}", class_="to-weld")
    return element("li", what, joined([" ", element("small", block.module)]) if block.module else "")
