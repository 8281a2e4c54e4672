"""The table of all words, their operators, and the way from a graph node to its word and back.

Other distributions offer words by entry points; they are loaded when the table is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from threading import RLock
from types import MappingProxyType

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.cache_write import CacheWrite
from kernelweld.ir.e2m1 import E2M1
from kernelweld.ir.e4m3 import E4M3
from kernelweld.ir.e8m0 import E8M0
from kernelweld.ir.expert_topk import ExpertTopK
from kernelweld.ir.gate_mul import GateMul
from kernelweld.ir.l2_norm import L2Norm
from kernelweld.ir.layer_norm import LayerNorm
from kernelweld.ir.matvec import MatVec
from kernelweld.ir.offers import accepted, origin, refuse_known
from kernelweld.ir.pointwise import POINTWISE, Pointwise
from kernelweld.ir.quant import Quant
from kernelweld.ir.quant_scale import QuantScale
from kernelweld.ir.residual_add import ResidualAdd
from kernelweld.ir.rms_norm import RMSNorm
from kernelweld.ir.rope import Rope
from kernelweld.ir.rope_table import RopeTable
from kernelweld.ir.router_scores import RouterScores
from kernelweld.ir.row_reduce import ROW_REDUCE, RowReduce
from kernelweld.ir.word import Static, Tensors, Word

#: kernelweld's own words.
WORDS: tuple[type[Word], ...] = (
    RMSNorm,
    LayerNorm,
    L2Norm,
    ResidualAdd,
    Rope,
    RopeTable,
    GateMul,
    QuantScale,
    Quant,
    E8M0,
    E4M3,
    E2M1,
    CacheWrite,
    MatVec,
    RouterScores,
    ExpertTopK,
)

Step = Word | Pointwise | RowReduce

_BY_KIND: Mapping[str, type[Word]] = MappingProxyType({cls.kind: cls for cls in WORDS})

#: The entry-point group in which other distributions offer words, as ``kind = "module:Class"``.
GROUP = "kernelweld.words"

_LIBRARY = torch.library.Library("kernelweld", "DEF")
#: Graphs are compiled by several threads; an operator is defined once.
_LOCK = RLock()


def _implementation(cls: type[Word]) -> Callable[..., Tensors]:
    def run(*tensors: torch.Tensor | None, **static: object) -> Tensors:
        word = cls.from_static(static)  # type: ignore[arg-type]
        tensors += (None,) * (len(cls.operands) - len(tensors))  # the dispatcher leaves out the last ones
        word.check(*tensors)
        return word.reference(*tensors)

    return run


@cache
def _define(cls: type[Word]) -> OpOverload:
    _LIBRARY.define(cls.schema())
    _LIBRARY.impl(cls.kind, _implementation(cls), "CompositeExplicitAutograd")
    torch.library.register_fake(f"kernelweld::{cls.kind}", _implementation(cls), lib=_LIBRARY)
    overload: OpOverload = getattr(torch.ops.kernelweld, cls.kind).default
    return overload


for _own in WORDS:
    _define(_own)


@dataclass(frozen=True)
class Vocabulary:
    """All words by kind, and by the operator that stands for each in a graph."""

    words: Mapping[str, type[Word]]
    classes: Mapping[OpOverload, type[Word]]


@cache
def vocabulary() -> Vocabulary:
    """kernelweld's own words, then those of other distributions, by kind."""
    with _LOCK:
        known = accepted("word", _BY_KIND, entry_points(group=GROUP), loaded)
        return Vocabulary(known, MappingProxyType({_define(cls): cls for cls in known.values()}))


def words() -> Mapping[str, type[Word]]:
    """All words by kind: kernelweld's own, then those of other distributions."""
    return vocabulary().words


def loaded(point: EntryPoint, known: Mapping[str, type[Word]] = _BY_KIND) -> type[Word]:
    """The word that ``point`` offers, with its operator defined. Raises if it is none that can be used, or
    one of its kind is ``known``.
    """
    refuse_known(point, known)
    cls = point.load()
    if not (isinstance(cls, type) and issubclass(cls, Word)) or isabstract(cls):
        raise TypeError(f"{point.value} is not a Word with a reference")
    if cls.kind != point.name:
        raise TypeError(f"{point.value} is called {cls.kind!r}")
    if "__dataclass_fields__" not in vars(cls):
        raise TypeError(f"{point.value} lacks @dataclass(frozen=True), so that its parameters are none")
    with _LOCK:
        _define(cls)
    return cls


def offered_by(kind: str) -> str:
    """Which distribution a word comes from, with its version; "kernelweld" for its own."""
    cls = words()[kind]
    return "kernelweld" if cls in WORDS else origin(GROUP, kind, cls)


def op_of(word: Word | type[Word]) -> OpOverload:
    """The ``torch.ops.kernelweld`` operator of a word.

    Raises:
        LookupError: the word is not in the vocabulary.
    """
    cls = word if isinstance(word, type) else type(word)
    if words().get(cls.kind) is not cls:
        raise LookupError(f"{cls.__module__}:{cls.__qualname__} is no word: offer it in the group {GROUP}")
    return _define(cls)


def word_of(node: fx.Node) -> Word | None:
    """The raised word that ``node`` calls, or None."""
    if node.op != "call_function":
        return None
    cls = vocabulary().classes.get(node.target)  # type: ignore[call-overload]
    return None if cls is None else _word(cls, tuple(node.kwargs.items()))


@lru_cache(maxsize=4096)
def _word(cls: type[Word], static: tuple[tuple[str, Static], ...]) -> Word:
    """Words are immutable: the layers of a model share theirs."""
    return cls.from_static(dict(static))


def step_of(node: fx.Node) -> Step | None:
    """What a weld would hold for ``node``: its raised word, or the nameless pointwise or row-reduce it
    is; None if neither, or for a word that is no row task.
    """
    if node.op != "call_function":
        return None
    word = word_of(node)
    if word is not None:
        return word if word.is_row else None
    if node.kwargs:  # alpha, dtype, rounding_mode: another operation than the plain one
        return None
    if node.target in POINTWISE and len(node.args) <= 2:
        return Pointwise(POINTWISE[node.target])  # type: ignore[index]
    return _row_reduce(node) if node.target in ROW_REDUCE else None


def _row_reduce(node: fx.Node) -> RowReduce | None:
    operand = node.args[0]
    if not isinstance(operand, fx.Node) or len(node.args) < 2:
        return None
    dims = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
    rank = operand.meta["val"].dim()
    if [d % rank for d in dims if isinstance(d, int)] != [rank - 1]:
        return None
    keepdim = bool(node.args[2]) if len(node.args) > 2 else False
    return RowReduce(ROW_REDUCE[node.target], keepdim)  # type: ignore[index]


def insert_word(graph: fx.Graph, word: Word, operands: Sequence[fx.Node | None]) -> fx.Node:
    """A call of ``word`` at the graph's insertion point, without the last operands where they are not given;
    the caller sets ``meta``.
    """
    absent = (None,) * (len(word.operands) - len(operands))
    return graph.call_function(op_of(word), (*operands, *absent), dict(word.static()))
