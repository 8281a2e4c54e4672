"""Words without an emitter, those of other distributions: the steps of their references in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from kernelweld.codegen.emitters.table import WORD_EMITTERS
from kernelweld.codegen.task import DTYPES
from kernelweld.ir import CacheWrite, Pointwise, RowReduce, Word, step_of
from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize.canonicalize_pass import CanonicalizePass
from kernelweld.passes.restore import trace
from kernelweld.passes.tasks.axes import DomainMismatch
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import (
    CAST,
    EXPAND,
    UNSQUEEZE,
    dtype_name,
    dtype_of,
    is_call,
    shape_of,
    shape_text,
)
from kernelweld.patterns.scalars import scalar

#: By word and operands: its steps, or why there are none, for so many at most: layers ask for the same ones.
#: Plain data, so that no graph is kept alive.
_KNOWN: dict[object, tuple[Inner, ...] | str] = {}
_MOST = 1024

_WANTED = "only elementwise steps and reductions of the last dimension become a kernel"


@dataclass(frozen=True)
class Place:
    """A value of a reference: its operands by number, and behind them the results of its steps."""

    number: int


@dataclass(frozen=True)
class Inner:
    """One step of a reference: what it is, what it reads, and the dtype that it is rounded to."""

    step: Pointwise | RowReduce
    reads: tuple[Place | float | int, ...]
    dtype: torch.dtype


Steps = tuple[Inner, ...]


def is_derived(node: fx.Node) -> bool:
    """Whether ``node`` calls a word that is emitted as the steps of its reference."""
    word = step_of(node)
    return isinstance(word, Word) and not isinstance(word, CacheWrite) and type(word) not in WORD_EMITTERS


def derived(node: fx.Node) -> Steps:
    """The steps of the reference of the word that ``node`` calls, the last of which is its result.

    The reference is traced on the operands that the node has, and canonicalized. Raises DomainMismatch for
    one that takes other steps than a row task has.
    """
    found = _found(node)
    if isinstance(found, str):
        raise DomainMismatch(found)
    return found


def defect(node: fx.Node) -> str | None:
    """Why the reference of a derived word has no steps; None if it has."""
    found = _found(node)
    return found if isinstance(found, str) else None


def _found(node: fx.Node) -> Steps | str:
    key = _key(node)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        found = _KNOWN[key] = _steps_or_reason(node)
    return found


def reduces(node: fx.Node) -> bool:
    """Whether the reference of a derived word reduces rows."""
    return any(isinstance(inner.step, RowReduce) for inner in derived(node))


def _key(node: fx.Node) -> object:
    """Equal for calls whose references take the same steps. By text: 0.0 and -0.0 are equal."""
    word = cast(Word, step_of(node))
    values = (_described(arg) if isinstance(arg, fx.Node) else None for arg in (node, *node.args))
    return type(word), repr(word), tuple(values)


def _described(node: fx.Node) -> tuple[object, ...]:
    return dtype_of(node), str(shape_of(node))


def _steps_or_reason(node: fx.Node) -> Steps | str:
    word = cast(Word, step_of(node))
    values = [arg.meta["val"] if isinstance(arg, fx.Node) else None for arg in node.args]
    try:
        graph = trace(word.reference, values)
        CanonicalizePass().run(fx.GraphModule(torch.nn.Module(), graph), PassContext())
    except Exception as error:  # whatever the reference of another distribution raises
        first = next(iter(str(error).strip().splitlines()), "")
        return f"the reference of {word.kind} raises {type(error).__name__}: {first}"
    present = [i for i, value in enumerate(values) if value is not None]
    places = dict(zip(graph.find_nodes(op="placeholder"), present, strict=True))
    try:
        return _Reading(word.kind, len(values), places).steps(graph, node)
    except DomainMismatch as mismatch:
        return mismatch.reason


class _Reading:
    """Reads a traced reference. ``lacking`` are statistics of rows without the dimension that was reduced."""

    def __init__(self, kind: str, operands: int, places: Mapping[fx.Node, int]) -> None:
        self._kind = kind
        self._places = {node: Place(number) for node, number in places.items()}
        self._count = operands
        self._width = next(iter(shape_of(node)[-1:] for node in places), ())
        self._lacking: set[fx.Node] = set()

    def steps(self, graph: fx.Graph, node: fx.Node) -> Steps:
        """The steps of ``graph``, whose result stands for ``node``."""
        found = tuple(self._calls(graph))
        (result,) = graph.find_nodes(op="output")[0].args
        if not isinstance(result, fx.Node):
            raise self._refused("has several results")
        if not found or self._places.get(result) != Place(self._count - 1):
            raise self._refused("returns an operand as it is")
        if dtype_of(result) != dtype_of(node) or not same_shape(shape_of(result), shape_of(node)):
            got, wanted = (f"{dtype_name(dtype_of(n))} {shape_text(shape_of(n))}" for n in (result, node))
            raise DomainMismatch(f"the reference of {self._kind} gives {got} where the graph has {wanted}")
        return found

    def _calls(self, graph: fx.Graph) -> Iterator[Inner]:
        for node in graph.nodes:
            if node.op in ("placeholder", "output") or scalar(node) is not None:
                continue
            if self._is_same(node):
                continue
            yield self._call(node)
            self._places[node] = Place(self._count)
            self._count += 1

    def _is_same(self, node: fx.Node) -> bool:
        """Whether ``node`` only repeats a row, or puts back the dimension that a reduction dropped."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source not in self._places:
            return False
        restores = is_call(node, UNSQUEEZE) and source in self._lacking and _last(node)
        repeats = is_call(node, EXPAND) and source not in self._lacking and _same_last(node, source)
        if not restores and not repeats:
            return False
        self._places[node] = self._places[source]
        return True

    def _call(self, node: fx.Node) -> Inner:
        step = step_of(node)
        if not isinstance(step, (Pointwise, RowReduce)):
            raise self._refused(f"calls {node.target}")
        dtype = dtype_of(node)
        if dtype is None or dtype not in DTYPES:
            raise self._refused(f"computes in {dtype_name(dtype)}")
        arguments = node.args[:1] if isinstance(step, RowReduce) or is_call(node, CAST) else node.args
        if isinstance(step, RowReduce):
            self._reduce(node, step)
        else:
            self._meet(node)
        return Inner(step, tuple(self._read(node, argument) for argument in arguments), dtype)

    def _reduce(self, node: fx.Node, step: RowReduce) -> None:
        source = cast(fx.Node, node.args[0])
        if source in self._lacking or shape_of(source)[-1:] != self._width:
            raise self._refused(f"reduces another dimension than the last of its first operand in %{node}")
        if not step.keepdim:
            self._lacking.add(node)

    def _meet(self, node: fx.Node) -> None:
        """A statistic that lacks its dimension meets its like only: beside rows it would be one."""
        tensors = [n for n in node.all_input_nodes if scalar(n) is None]
        lacking = [n for n in tensors if n in self._lacking]
        if lacking and len(lacking) < len(tensors):
            raise self._refused(f"mixes rows with a statistic of them that has no last dimension in %{node}")
        if lacking:
            self._lacking.add(node)

    def _read(self, node: fx.Node, argument: object) -> Place | float | int:
        if isinstance(argument, fx.Node):
            number = scalar(argument)
            if number is None and argument not in self._places:
                raise self._refused(f"reads %{argument}, which is no operand of it")
            return self._places[argument] if number is None else number
        if isinstance(argument, (int, float)) and not isinstance(argument, bool):
            return argument
        raise self._refused(f"has {argument!r} in %{node}, which is no number")

    def _refused(self, reason: str) -> DomainMismatch:
        return DomainMismatch(f"the reference of {self._kind} {reason}: {_WANTED}")


def _same_last(node: fx.Node, source: fx.Node) -> bool:
    return bool(shape_of(source)) and same_size(shape_of(node)[-1], shape_of(source)[-1])


def _last(node: fx.Node) -> bool:
    """Whether an unsqueeze appends the last dimension."""
    return int(cast(int, node.args[1])) % len(shape_of(node)) == len(shape_of(node)) - 1
