"""Raise: words in place of nodes, with their metadata and origin; near misses; and the way back."""

from __future__ import annotations

import copy
import operator
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from kernelweld.integrations.aot import capture
from kernelweld.ir import op_of, word_of
from kernelweld.ir.origin import ORIGIN
from kernelweld.ir.rms_norm import RMSNorm
from kernelweld.ir.rope_table import RopeTable
from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize import CanonicalizePass
from kernelweld.passes.raise_words import RaisePass, unraise
from kernelweld.patterns.table import PATTERNS

aten = torch.ops.aten


def norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def layer(x: Tensor, y: Tensor, w: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    gate, up = (norm(total, w) @ gate_up).chunk(2, -1)
    return F.silu(gate) * up, total


def tables(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    angle = positions[:, None].float() * inv_freq
    cos = angle.cos() * 2.0
    used_early = cos.neg()
    return used_early, angle.sin() * 2.0


def inputs(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    shapes = ((7, 64), (7, 64), (64,), (64, 96))
    return [torch.randn(s, generator=torch.Generator().manual_seed(len(s))).to(dtype) for s in shapes]


def traced(fn: Any, *args: Tensor) -> fx.GraphModule:
    gm = make_fx(fn, decomposition_table=select_decomp_table(), tracing_mode="fake")(*args)
    view_to_reshape(gm)
    gm.graph.eliminate_dead_code()
    for line, node in enumerate(gm.graph.nodes):
        node.meta["stack_trace"] = f'  File "model.py", line {line}, in forward\n    code'
        node.meta["nn_module_stack"] = {"norm": ("norm", torch.nn.Module)}
    gm.recompile()
    return gm


def raise_words(gm: fx.GraphModule, **options: Any) -> PassContext:
    context = PassContext()
    RaisePass(**options).run(gm, context)
    gm.graph.lint()
    gm.recompile()
    return context


def kinds(gm: fx.GraphModule) -> list[str]:
    return [word.kind for node in gm.graph.nodes if (word := word_of(node)) is not None]


def test_words_stand_where_their_nodes_stood() -> None:
    gm = traced(layer, *inputs())
    before = gm(*inputs())
    result = RaisePass().run(gm, PassContext())
    gm.recompile()
    assert kinds(gm) == ["residual_add", "rms_norm", "gate_mul"]
    assert (result.modified, result.count) == (True, 3)
    for a, b in zip(gm(*inputs()), before, strict=True):
        assert torch.equal(a, b)


def test_metadata_of_the_value_replaced() -> None:
    gm = traced(layer, *inputs())
    (mul,) = [n for n in gm.graph.nodes if n.target is aten.mul.Tensor and "w_1" in map(str, n.args)]
    raise_words(gm)
    (word,) = [n for n in gm.graph.nodes if isinstance(word_of(n), RMSNorm)]
    for key in ("val", "stack_trace", "nn_module_stack"):
        assert word.meta[key] is mul.meta[key]


def test_origin_holds_the_nodes_and_their_lines() -> None:
    gm = traced(layer, *inputs())
    raise_words(gm)
    (word,) = [n for n in gm.graph.nodes if isinstance(word_of(n), RMSNorm)]
    origin = word.meta[ORIGIN]
    calls = [n for n in origin.graph.nodes if n.op == "call_function"]
    assert origin.size == len(calls) == 8
    assert origin.inputs == 2
    assert len(origin.sources) == 8
    assert all(line.startswith("model.py:") for line in origin.sources)


def test_nothing_dead_is_left() -> None:
    gm = traced(layer, *inputs())
    raise_words(gm)
    assert all(node.users for node in gm.graph.nodes if node.op == "call_function")


def test_two_results() -> None:
    """The first result has a user before the second is made: the word stands before both."""
    args = (torch.arange(7), torch.randn(4))
    gm = traced(tables, *args)
    before = gm(*args)
    raise_words(gm)
    (word,) = [n for n in gm.graph.nodes if isinstance(word_of(n), RopeTable)]
    assert len(word.meta["val"]) == 2
    assert [(u.target, u.args[1]) for u in word.users] == [(operator.getitem, 0), (operator.getitem, 1)]
    assert all(u.meta["val"].shape == (7, 4) for u in word.users)
    for a, b in zip(gm(*args), before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("fn", [layer, tables])
def test_unraise_gives_the_same_nodes(fn: Any) -> None:
    args = inputs() if fn is layer else [torch.arange(7), torch.randn(4)]
    gm = traced(fn, *args)
    targets = sorted(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
    before = gm(*args)
    raise_words(gm)
    raised = len(kinds(gm))
    assert unraise(gm) == raised > 0
    gm.graph.lint()
    assert sorted(str(n.target) for n in gm.graph.nodes if n.op == "call_function") == targets
    assert all("val" in n.meta for n in gm.graph.nodes if n.op == "call_function")
    for a, b in zip(gm(*args), before, strict=True):
        assert torch.equal(a, b)


def test_unraise_of_a_graph_without_words() -> None:
    gm = traced(lambda x: x + 1, torch.randn(3))
    assert unraise(gm) == 0


def test_a_copied_graph_can_be_unraised() -> None:
    gm = traced(layer, *inputs())
    before = gm(*inputs())
    raise_words(gm)
    twin = copy.deepcopy(gm)
    assert unraise(twin) == 3
    for a, b in zip(twin(*inputs()), before, strict=True):
        assert torch.equal(a, b)


def near(x: Tensor, w: Tensor) -> Tensor:
    return x.float() * torch.rsqrt(x.float().abs().mean(-1, keepdim=True) + 1e-6) * w


def test_near_miss_names_anchor_line_and_reason() -> None:
    gm = traced(near, *inputs()[1:3])
    (root,) = [n for n in gm.graph.nodes if n.target is aten.rsqrt.default]
    (miss,) = raise_words(gm).near_misses
    assert (miss.anchor, miss.kind) == ("rsqrt", "rms_norm")
    assert miss.source == f"model.py:{root.meta['stack_trace'].split('line ')[1].split(',')[0]}"
    assert miss.reason == "the mean is of %abs_1, which is no square"


def test_an_anchor_that_another_pattern_takes_is_no_near_miss() -> None:
    """A LayerNorm by hand has all of an RMSNorm's parts; it is raised, so nothing is reported."""

    def graph(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6)

    gm = traced(graph, torch.randn(7, 64))
    assert raise_words(gm).near_misses == []
    assert kinds(gm) == ["layer_norm"]


def test_only_the_patterns_asked_for() -> None:
    gm = traced(layer, *inputs())
    raise_words(gm, patterns=("gate_mul",))
    assert kinds(gm) == ["gate_mul"]


def test_patterns_run_in_the_order_of_the_table() -> None:
    """A gate inside a norm is the norm's; residual sums come when the norms are there."""
    names = tuple(PATTERNS)
    assert RaisePass().patterns == names
    assert names.index("rms_norm") < names.index("gate_mul")
    assert names.index("rope") < names.index("rope_table")
    assert max(names.index("rms_norm"), names.index("layer_norm")) < names.index("residual_add")


def written_between(value: float | None) -> fx.GraphModule:
    """An RMSNorm whose input is overwritten between its square and its product, unless ``value`` is None."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    square = graph.call_function(aten.mul.Tensor, (x, x))
    mean = graph.call_function(aten.mean.dim, (square, [-1], True))
    if value is not None:
        graph.call_function(aten.fill_.Scalar, (graph.call_function(aten.slice.Tensor, (x, 1, 0, 2)), value))
    root = graph.call_function(aten.rsqrt.default, (graph.call_function(aten.add.Tensor, (mean, 1e-6)),))
    graph.output(graph.call_function(aten.mul.Tensor, (x, root)))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    FakeTensorProp(gm, FakeTensorMode()).propagate(torch.randn(3, 8))
    return gm


def test_no_word_across_a_write_to_its_input() -> None:
    x = torch.randn(3, 8)
    gm = written_between(7.0)
    before = gm(x.clone())
    (miss,) = raise_words(gm).near_misses
    assert kinds(gm) == []
    assert miss.reason == "%fill__scalar writes to an operand between its uses"
    assert torch.equal(gm(x.clone()), before)
    unwritten = written_between(None)
    raise_words(unwritten)
    assert kinds(unwritten) == ["rms_norm"]


def test_no_word_whose_result_is_read_by_strides() -> None:
    def graph(x: Tensor, w: Tensor) -> Tensor:
        return torch.as_strided(norm(x, w), (7, 32), (64, 2))

    gm = traced(graph, *inputs()[1:3])
    (miss,) = raise_words(gm).near_misses
    assert kinds(gm) == []
    assert miss.reason == "%as_strided reads the result by its strides"


def test_symbolic_rows_add_no_guard() -> None:
    x, w = inputs()[0], inputs()[2]
    gm = make_fx(norm, decomposition_table=select_decomp_table(), tracing_mode="symbolic")(x, w)
    (placeholder, _) = gm.graph.find_nodes(op="placeholder")
    shape_env = placeholder.meta["val"].fake_mode.shape_env
    guards = len(shape_env.guards)
    raise_words(gm)
    assert kinds(gm) == ["rms_norm"]
    assert len(shape_env.guards) == guards
    for rows in (1, 3, 8):
        assert torch.equal(gm(x[:1].expand(rows, 64), w), norm(x[:1].expand(rows, 64), w))


def glm_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * cos + rotated * sin


def spread_table(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    angle = positions[..., None].float() * inv_freq
    angle = angle.unsqueeze(-2).expand(*angle.shape[:-1], 2, 4).clone().reshape(*angle.shape[:-1], 8)
    return angle.cos(), angle.sin()


def normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=1e-6)


SYMBOLIC = [
    (glm_rope, lambda b, t: (torch.randn(b, 4, t, 8), torch.randn(b, 1, t, 8), torch.randn(b, 1, t, 8))),
    (spread_table, lambda b, t: (torch.randint(0, 99, (b, t)), torch.randn(4))),
    (normalize, lambda b, t: (torch.randn(b, t, 8),)),
]


@pytest.mark.parametrize(("fn", "make"), SYMBOLIC, ids=lambda v: v.__name__)
def test_symbolic_sizes_inside_a_word(fn: Any, make: Any) -> None:
    """Views inside name sizes of the graph; the origin reads them from the operands, so it stands alone."""
    (gm,) = capture(fn, [marked(x) for x in make(5, 7)]).graphs
    before = copy.deepcopy(gm)
    CanonicalizePass().run(gm, PassContext())
    raise_words(gm)
    assert len(kinds(gm)) == 1
    (word,) = [n for n in gm.graph.nodes if word_of(n) is not None]
    placeholders = [n for n in word.meta[ORIGIN].graph.nodes if n.op == "placeholder"]
    assert len(placeholders) == len([a for a in word.args if a is not None])
    raised = copy.deepcopy(gm)
    unraise(gm)
    gm.graph.lint()
    for b, t in ((2, 3), (6, 9), (4, 5)):
        args = graph_arguments(before, make(b, t), b, t)
        for a, c, d in zip(*(graph(*args) for graph in (before, gm, raised)), strict=True):
            assert torch.equal(a, c)
            assert torch.equal(a, d)


def marked(x: Tensor) -> Tensor:
    """``x`` with the sizes that stand for batch and time made symbols."""
    for dim, size in enumerate(x.shape):
        if size in (5, 7):
            torch._dynamo.mark_dynamic(x, dim)
    return x


def graph_arguments(gm: fx.GraphModule, tensors: Any, b: int, t: int) -> list[Any]:
    """The tensors, and the sizes that the graph takes besides them."""
    rest = iter(tensors)
    values = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    sizes = {5: b, 7: t}
    return [next(rest) if isinstance(v, Tensor) else sizes[v.node.hint] for v in values]


def test_a_raised_graph_has_no_matches_left() -> None:
    gm = traced(layer, *inputs())
    raise_words(gm)
    result = RaisePass().run(gm, PassContext())
    assert not result.modified


def test_the_operator_of_a_word_is_in_the_graph() -> None:
    gm = traced(layer, *inputs())
    raise_words(gm)
    assert op_of(RMSNorm) in {n.target for n in gm.graph.nodes}


def test_time_is_linear() -> None:
    def seconds(layers: int) -> float:
        def graph(x: Tensor, y: Tensor, w: Tensor, gate_up: Tensor) -> Tensor:
            for _ in range(layers):
                gate, x = layer(x, y, w, gate_up)
                x = x + F.pad(gate, (0, 16))
            return x

        gm = traced(graph, *inputs())
        start = time.process_time()
        RaisePass().run(gm, PassContext())
        elapsed = time.process_time() - start
        assert kinds(gm).count("gate_mul") == layers
        return elapsed

    seconds(5)
    small, large = min(seconds(25) for _ in range(2)), min(seconds(100) for _ in range(2))
    assert large < 8 * small + 0.05
