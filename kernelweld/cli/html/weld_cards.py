"""Every distinct weld once: its words, its lines, its kernel, and what is known of how it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernelweld.cli.compiling import Built
from kernelweld.cli.html.highlight import highlighted
from kernelweld.cli.html.listing import listing
from kernelweld.cli.html.markup import Html, element, joined
from kernelweld.cli.layers import Layer, numbers
from kernelweld.cli.reported import Shown, WeldShown
from kernelweld.cli.times import Measured

_COLUMNS = ("for", "warps", "registers", "spills", "shared")
_FILTER = "Filter welds and what is not welded"


def weld_cards(shown: Shown) -> Html:
    box = element(
        "div",
        element("label", _FILTER, for_="filter"),
        element(
            "input", type="search", id="filter", placeholder="rms_norm, a file, a layer …", autocomplete="off"
        ),
        element("output", id="filtered", for_="filter"),
        class_="filter",
        hidden=True,
    )
    cards = [_card(number, weld, shown.layers) for number, weld in enumerate(shown.welds, 1)]
    nothing = element("p", "No weld was made.", class_="intro")
    return element(
        "section", element("h2", "Welds"), _found(shown.words), box, *(cards or [nothing]), id="welds"
    )


def _found(words: Mapping[str, tuple[int, int]]) -> Html:
    """How many words of each kind are in welds."""
    items = [
        element("li", element("code", kind), f" {welded} of {count}")
        for kind, (count, welded) in words.items()
    ]
    return element("ul", *items, class_="found", aria_label="Words in welds, by kind") if items else Html()


def _card(number: int, weld: WeldShown, layers: Sequence[Layer]) -> Html:
    plural = "es" if weld.before != 1 else ""
    top = element(
        "div",
        element("span", str(number), class_="number"),
        element("h3", element("code", weld.name)),
        element("span", f"× {weld.count}", class_="times-of"),
        element("p", f"{weld.before} launch{plural} → ", element("b", "1"), class_="gain"),
        class_="top",
    )
    return element(
        "article",
        top,
        element("p", _where(weld, layers), class_="where"),
        element("div", _tasks(weld), _built(weld.built), class_="columns"),
        _measured(weld.measured),
        listing(weld.code),
        _kernel(weld),
        class_="card weld-card",
        id=f"weld-{number}",
        data_filter=True,
    )


def _where(weld: WeldShown, layers: Sequence[Layer]) -> str:
    homes = [layer for layer in layers if layer.name in weld.layers]
    places = [f"{name} {which}" for name, which in numbers(homes).items()]
    places += [layer.name for layer in homes if layer.number is None]
    rows = f"{weld.rows:,} row{'' if weld.rows == 1 else 's'}"
    return f"{'; '.join(places)} · {rows} · {weld.moved:,} bytes read and written"


def _tasks(weld: WeldShown) -> Html:
    """The words of each row task in order."""
    tasks = [element("ol", *map(_word, words), class_="words") for words in weld.tasks]
    return element("div", element("h4", "Words" if len(tasks) == 1 else "Words, in row tasks"), *tasks)


def _word(word: str) -> Html:
    name, brace, fields = word.partition("{")
    return element("li", element("code", element("b", name), f" {fields.rstrip('}')}" if brace else ""))


def _built(built: Sequence[Built]) -> Html:
    """A row a GPU; a kernel that does not compile says why in its place."""
    rows = [element("tr", element("th", one.target, scope="row"), *_sizes(one)) for one in built]
    heads = [element("th", name, scope="col") for name in _COLUMNS]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *rows), class_="built")
    failures = [element("pre", str(one.failure), class_="failure") for one in built if one.compiled is None]
    return element("div", element("h4", "Kernel"), table, *failures) if built else Html()


def _sizes(built: Built) -> Iterator[Html]:
    done = built.compiled
    if done is None:
        yield element("td", "does not compile", class_="warn", colspan=len(_COLUMNS) - 1)
        return
    yield element("td", str(built.kernel.launch.num_warps))
    yield element("td", str(done.registers))
    yield element("td", f"{done.stack_bytes} B", class_="warn" if done.stack_bytes else None)
    yield element("td", f"{done.shared_bytes:,} B")


def _measured(measured: Sequence[Measured]) -> Html:
    return joined(element("div", *_times(one), class_="measured") for one in measured)


def _times(one: Measured) -> Iterator[Html]:
    longest = max(one.us.values(), default=0.0) or 1.0
    yield element("h4", f"Measured on {one.gpu}, by {one.origin}")
    rows = [
        element(
            "tr",
            element("th", name, scope="row"),
            element(
                "td", element("span", class_=f"bar-of-time {name}", style=f"width:{100 * us / longest:.2f}%")
            ),
            element("td", f"{us:.2f} µs"),
        )
        for name, us in one.us.items()
    ]
    yield element("table", element("tbody", *rows), class_="times")
    if one.copy_fraction is not None:
        yield element("p", f"{one.copy_fraction:.0%} of the speed of a copy of as many bytes.", class_="of")


def _kernel(weld: WeldShown) -> Html:
    lines = weld.source.count("\n")
    source = element("pre", element("code", highlighted(weld.source)), class_="kernel", tabindex=0)
    return element(
        "details", element("summary", "Triton source ", element("small", f"{lines} lines")), source
    )
