"""Graphs for pattern tests.

A function is traced to post-grad ATen, canonicalized and raised, and must go on computing the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from kernelweld.integrations.aot import capture
from kernelweld.ir import Word, word_of
from kernelweld.ir.report import NearMiss
from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize import CanonicalizePass
from kernelweld.passes.raise_words import RaisePass, unraise

Function = Callable[..., Any]


@dataclass(frozen=True)
class Raised:
    """A graph after ``raise``, the canonical graph ``before`` it, and the near misses."""

    gm: fx.GraphModule
    before: fx.GraphModule
    misses: tuple[NearMiss, ...]

    @property
    def calls(self) -> list[fx.Node]:
        """The word nodes."""
        return [node for node in self.gm.graph.nodes if word_of(node) is not None]

    @property
    def words(self) -> list[Word]:
        """The words."""
        return [word for node in self.gm.graph.nodes if (word := word_of(node)) is not None]

    @property
    def only(self) -> Word:
        """The single word of the graph."""
        (word,) = self.words
        return word

    @property
    def operands(self) -> list[str | None]:
        """What the single word reads: the names of nodes, None where an operand is absent."""
        (call,) = self.calls
        return [arg.name if isinstance(arg, fx.Node) else None for arg in call.args]

    def of(self, kind: str) -> list[Word]:
        """The words of one kind."""
        return [word for word in self.words if word.kind == kind]

    def reason(self, kind: str) -> str:
        """Why the only near miss of ``kind`` is none."""
        (reason,) = [miss.reason for miss in self.misses if miss.kind == kind]
        return reason


def graph_of(
    fn: Function, inputs: tuple[Any, ...], *, decompose: bool = True, compiled: bool = False
) -> fx.GraphModule:
    """``fn`` as Inductor's post-grad passes see it. ``decompose=False`` keeps operators such as silu whole.

    ``compiled`` goes through ``torch.compile`` itself, which takes a second instead of some milliseconds.
    """
    if isinstance(fn, fx.GraphModule):
        _fill_in(fn, inputs)
        return fn
    if compiled:
        (gm,) = capture(fn, inputs).graphs
        return gm
    table = select_decomp_table() if decompose else {}
    with torch.no_grad():
        functional = torch.func.functionalize(fn, remove="mutations")
        gm = make_fx(functional, decomposition_table=table, tracing_mode="fake")(*inputs)
    view_to_reshape(gm)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _fill_in(gm: fx.GraphModule, inputs: tuple[Any, ...]) -> None:
    """Gives the nodes of a graph made by hand the values that Inductor would."""
    mode = FakeTensorMode()
    FakeTensorProp(gm, mode).propagate(*inputs)


@pytest.fixture
def raised() -> Callable[..., Raised]:
    """``raised(fn, *inputs, exact=True, **how)``: traces as ``graph_of`` does, canonicalizes and raises.

    The graph runs after each step. Canonical and unraised graphs must give the bits of the first one; with
    words the bits too, unless ``exact`` is off: then a result may be off by a few units of its dtype, where
    the source takes another way to the same formula.
    """

    def run(fn: Function, *inputs: Any, exact: bool = True, **how: bool) -> Raised:
        gm = graph_of(fn, inputs, **how)
        expected = gm(*_copies(inputs))
        CanonicalizePass().run(gm, PassContext())
        gm.graph.lint()
        gm.recompile()
        _check(gm, inputs, expected, exact=True)
        before = _copy(gm)
        context = PassContext()
        RaisePass().run(gm, context)
        gm.graph.lint()
        gm.recompile()
        _check(gm, inputs, expected, exact=exact)
        back = _copy(gm)
        unraise(back)
        assert all(word_of(node) is None for node in back.graph.nodes)
        _check(back, inputs, expected, exact=True)
        return Raised(gm, before, tuple(context.near_misses))

    return run


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def _copies(inputs: tuple[Any, ...]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def _check(gm: fx.GraphModule, inputs: tuple[Any, ...], expected: Any, *, exact: bool) -> None:
    got, wanted = pytree.tree_leaves(gm(*_copies(inputs))), pytree.tree_leaves(expected)
    for a, b in zip(got, wanted, strict=True):
        if exact or not b.dtype.is_floating_point:
            assert a.dtype == b.dtype
            assert torch.equal(_bits(a), _bits(b))
        else:
            torch.testing.assert_close(
                a, b, rtol=4 * torch.finfo(b.dtype).eps, atol=4 * torch.finfo(b.dtype).eps
            )
