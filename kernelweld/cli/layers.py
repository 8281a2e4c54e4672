"""The launches of a model, layer by layer, before the passes and after."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal

from torch import fx

from kernelweld.ir.origin import sources_of
from kernelweld.passes.launches.listing import Launch

Kind = Literal["weld", "library", "generated"]
#: A launch, and the number of the distinct weld that it is, if it is one.
Numbered = tuple[Launch, int | None]

BEFORE, AFTER, ALONE = "before the layers", "after the layers", "not in a layer"
_NAMED = 5  # operators of a generated kernel that are named
_ROOT = re.compile(r"^L\['\w+'\]")
_NO_PART = re.compile(r"\.?slice\([^)]*\)|_modules")
_PART = re.compile(r"[A-Za-z_]\w*|\d+")
_PLAIN = frozenset({"convert_element_type", "clone", "copy", "full", "scalar_tensor", "full_like"})


@dataclass(frozen=True)
class Block:
    """One launch: what it is, where in its layer, and by which line of the model.

    ``weld`` is the number of the distinct weld that it is. Blocks of one ``key`` are the same launch before
    the passes and after.
    """

    kind: Kind
    name: str
    module: str
    source: str | None
    weld: int | None = None
    key: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Layer:
    """One layer by its module path, or what belongs to none; ``number`` is its place in the model's list."""

    name: str
    number: int | None
    before: tuple[Block, ...]
    after: tuple[Block, ...]

    @property
    def saved(self) -> int:
        return len(self.before) - len(self.after)

    @property
    def shape(self) -> object:
        """Equal for layers with the same launches. Their order in the graph may differ without meaning."""
        return tuple(frozenset(Counter(map(_look, row)).items()) for row in (self.before, self.after))


@dataclass(frozen=True)
class Stretch:
    """Launches before, and those that do the same work after."""

    before: tuple[Block, ...]
    after: tuple[Block, ...]


def layers(before: Sequence[Numbered], after: Sequence[Numbered], names: Sequence[str]) -> tuple[Layer, ...]:
    """The layers in the order of the model; what belongs to none comes first or last, as it runs. ``names``
    are those of the distinct welds.
    """
    rows = [_by_layer(row, names) for row in (before, after)]
    inside = {name for row in rows for name in row} - {BEFORE, AFTER, ALONE}
    ordered = [BEFORE, *sorted(inside, key=_natural), AFTER, ALONE]
    found = (
        Layer(name, _number(name), tuple(rows[0].get(name, ())), tuple(rows[1].get(name, ())))
        for name in ordered
    )
    return tuple(layer for layer in found if layer.before or layer.after)


def kinds(found: Sequence[Layer]) -> Mapping[str, int]:
    """For the name of each layer the number of its kind, from 0: layers of one shape are of one kind."""
    numbers: dict[object, int] = {}
    return {
        layer.name: numbers.setdefault(layer.shape, len(numbers))
        for layer in found
        if layer.number is not None
    }


def alike(found: Sequence[Layer]) -> Mapping[str, list[Layer]]:
    """Layers by the letter of their kind, and what is none by its name, in order."""
    kind = kinds(found)
    groups: dict[str, list[Layer]] = {}
    for layer in found:
        key = letter(kind[layer.name]) if layer.name in kind else layer.name
        groups.setdefault(key, []).append(layer)
    return groups


def letter(number: int) -> str:
    """A, B, …, Z, AA, AB, … for 0, 1, …"""
    first, last = divmod(number, 26)
    return (letter(first - 1) if first else "") + chr(ord("A") + last)


def numbers(found: Iterable[Layer]) -> Mapping[str, str]:
    """The numbers of layers by the list they are of, runs shortened: ``{"model.layers": "0–2, 4"}``."""
    lists: dict[str, list[int]] = {}
    for layer in found:
        if layer.number is not None:
            lists.setdefault(layer.name.rpartition(".")[0], []).append(layer.number)
    return {name: ", ".join(_runs(ordered)) for name, ordered in lists.items()}


def _runs(ordered: Sequence[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(ordered), key=lambda entry: entry[1] - entry[0]):
        run = [number for _, number in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}"


def stretches(layer: Layer) -> Iterator[Stretch]:
    """The launches of a layer side by side: those that stay are fixed points, the rest lies between."""
    before, after = layer.before, layer.after
    keys = [[block.key for block in row] for row in (before, after)]
    at = [0, 0]
    for match in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks():
        between = Stretch(before[at[0] : match.a], after[at[1] : match.b])
        if between.before or between.after:
            yield between
        for i in range(match.size):
            yield Stretch((before[match.a + i],), (after[match.b + i],))
        at = [match.a + match.size, match.b + match.size]


def module_of(node: fx.Node) -> tuple[str | None, str]:
    """The layer of a node (``model.layers.0``), None for no layer, and the module path inside it."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None, ""
    path = str(next(reversed(stack.values()))[0])
    parts = _PART.findall(_NO_PART.sub("", _ROOT.sub("", path)))
    index = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    if index is None:
        return None, ".".join(parts)
    return ".".join(parts[: index + 1]), ".".join(parts[index + 1 :])


def _by_layer(row: Sequence[Numbered], names: Sequence[str]) -> Mapping[str, list[Block]]:
    homes = [_most([module_of(node)[0] for node in launch.writes]) for launch, _ in row]
    inside = [place for place, home in enumerate(homes) if home is not None]
    found: dict[str, list[Block]] = {}
    for place, ((launch, weld), home) in enumerate(zip(row, homes, strict=True)):
        outside = ALONE if not inside else BEFORE if place < max(inside) else AFTER
        block = _block(launch, home)
        if weld is not None:
            block = replace(block, kind="weld", name=names[weld], weld=weld)
        found.setdefault(home or outside, []).append(block)
    return found


def _most(homes: Sequence[str | None]) -> str | None:
    """The layer that most of what a launch writes is of; of equals the last, which the rest is for."""
    return Counter(reversed(homes)).most_common(1)[0][0]


def _block(launch: Launch, home: str | None) -> Block:
    last = [node for node in launch.writes if module_of(node)[0] == home][-1]
    module, lines = module_of(last)[1], sources_of(last)
    source = lines[-1] if lines else None
    if launch.is_library:
        return Block("library", operator_name(last), module, source, None, f"call {last.name}")
    return Block("generated", _operators(launch.nodes), module, source, None, f"kernel {last.name}")


def operator_name(node: fx.Node) -> str:
    """The name of a call's operator, without the overload, and without the name space of torch's own."""
    target = node.target
    if not hasattr(target, "_schema"):
        return str(getattr(target, "__name__", target))
    space, _, name = str(target._schema.name).partition("::")
    return name if space in ("aten", "prims") else f"{space}.{name}"


def _operators(nodes: Sequence[fx.Node]) -> str:
    names = dict.fromkeys(map(operator_name, nodes))
    telling = [name for name in names if name not in _PLAIN] or list(names)
    rest = len(telling) - _NAMED
    return ", ".join(telling[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _look(block: Block) -> tuple[object, ...]:
    """What tells a launch from another: constants that a generated kernel takes in differ without meaning."""
    return block.kind, block.weld, block.name if block.kind == "library" else None


def _number(name: str) -> int | None:
    last = name.rpartition(".")[2]
    return int(last) if last.isdecimal() else None


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in name.split("."))
