"""Canonicalize: fewer spellings, not one bit of difference, and no new alias."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize import CanonicalizePass
from kernelweld.passes.canonicalize.strides import contiguous_strides, view_strides

aten = torch.ops.aten
Graph = fx.GraphModule


def canonical(fn: Callable[..., Any], *inputs: Tensor) -> Graph:
    """The canonical graph of ``fn``; it computes the same bits with the same strides as before."""
    gm = make_fx(fn, tracing_mode="fake")(*inputs)
    view_to_reshape(gm)
    return checked(gm, *inputs)


def checked(gm: Graph, *inputs: Tensor) -> Graph:
    before = pytree.tree_leaves(gm(*[x.clone() for x in inputs]))
    CanonicalizePass().run(gm, PassContext())
    gm.graph.lint()
    gm.recompile()
    for a, b in zip(pytree.tree_leaves(gm(*[x.clone() for x in inputs])), before, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))
    return gm


def ops(gm: Graph) -> list[str]:
    """The calls of a graph as ``name(arguments)``; the results of calls are ``%0``, ``%1`` and so on."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    names = {n.name: f"%{i}" for i, n in enumerate(calls)}
    return [
        f"{str(n.target).split('.')[1]}({', '.join(names.get(str(a), str(a)) for a in n.args)})"
        for n in calls
    ]


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


REWRITES = [
    (lambda a: a.split([16, 8], -1)[1] * 2, ["slice(a_1, 1, 16, 24)", "mul(%0, 2)"]),
    (lambda a: a.chunk(3, -1)[0] * 2, ["slice(a_1, 1, 0, 8)", "mul(%0, 2)"]),
    (lambda a: a.unbind(0)[1] * 2, ["select(a_1, 0, 1)", "mul(%0, 2)"]),
    (lambda a: a[:1].exp()[0] * 2, ["slice(a_1, 0, 0, 1)", "exp(%0)", "squeeze(%1, 0)", "mul(%2, 2)"]),
    (lambda a: a[:, -8:] * 2, ["slice(a_1, 1, 16, 24)", "mul(%0, 2)"]),
    (lambda a: a[:, 3:9999:2] * 2, ["slice(a_1, 1, 3, 24, 2)", "mul(%0, 2)"]),
    (lambda a: a[:, 4:20][:, 2:10] * 2, ["slice(a_1, 1, 6, 14)", "mul(%0, 2)"]),
    (lambda a: a[:, :] * 2, ["mul(a_1, 2)"]),
    (lambda a: a.reshape(2, 3, 24).reshape(-1, 12) * 2, ["reshape(a_1, [12, 12])", "mul(%0, 2)"]),
    (lambda a: a.reshape(6, 24) * 2, ["mul(a_1, 2)"]),
    (lambda a: a.expand(6, -1) * 2, ["mul(a_1, 2)"]),
    (lambda a: a.t().t() * 2, ["mul(a_1, 2)"]),
    (lambda a: a.permute(0, 1) * 2, ["mul(a_1, 2)"]),
    (lambda a: a.unsqueeze(1).squeeze(1) * 2, ["mul(a_1, 2)"]),
    (lambda a: a[:1].squeeze(0).unsqueeze(0) * 2, ["slice(a_1, 0, 0, 1)", "mul(%0, 2)"]),
    (lambda a: a.t().reshape(3, 8, 6).reshape(24, 6).t() * 2, ["mul(a_1, 2)"]),
    (lambda a: a.unsqueeze(-1) * 2, ["unsqueeze(a_1, 2)", "mul(%0, 2)"]),
    (lambda a: a.pow(2) + a, ["mul(a_1, a_1)", "add(%0, a_1)"]),
    (lambda a: (a * 1.0).exp(), ["exp(a_1)"]),
    (lambda a: (a / 1).exp(), ["exp(a_1)"]),
    (lambda a: (a - 0).exp(), ["exp(a_1)"]),
    (lambda a: aten.add.Scalar(a, 2.0).exp(), ["add(a_1, 2.0)", "exp(%0)"]),
    (lambda a: aten.mul.Scalar(a, 1.0).exp(), ["exp(a_1)"]),
    (lambda a: a.clone().exp(), ["exp(a_1)"]),
]


@pytest.mark.parametrize(("fn", "expected"), REWRITES)
def test_rewrite(fn: Callable[..., Any], expected: list[str]) -> None:
    assert ops(canonical(fn, x(6, 24))) == expected


def scattered(a: Tensor, start: int, end: int, cut: slice, *, dense: bool = False) -> Tensor:
    """A slice of ``a`` after columns ``start`` to ``end`` were written."""
    part = a.exp()[:, start - end :]
    return aten.slice_scatter(a, part.contiguous() if dense else part, 1, start, end)[:, cut]


def of_two(a: Tensor) -> Tensor:
    first = aten.slice_scatter(a, a.exp()[:, 8:16], 1, 0, 8)
    return aten.slice_scatter(first, a.sin()[:, 8:16], 1, 8, 16)[:, 2:6] * 2


PAST_SCATTERS = [
    (lambda a: scattered(a, 8, 16, slice(0, 8)) * 2, ["slice(a_1, 1, 0, 8)", "mul(%0, 2)"]),
    (lambda a: scattered(a, 8, 16, slice(16, 24)) * 2, ["slice(a_1, 1, 16, 24)", "mul(%0, 2)"]),
    (
        lambda a: scattered(a, 8, 16, slice(10, 12)) * 2,
        ["exp(a_1)", "slice(%0, 1, 16, 24)", "slice(%1, 1, 2, 4)", "mul(%2, 2)"],
    ),
    (
        lambda a: scattered(a, 8, 16, slice(8, 16)) * 2,
        ["exp(a_1)", "slice(%0, 1, 16, 24)", "mul(%1, 2)"],
    ),
    (of_two, ["exp(a_1)", "slice(%0, 1, 8, 16)", "slice(%1, 1, 2, 6)", "mul(%2, 2)"]),
]


@pytest.mark.parametrize(("fn", "expected"), PAST_SCATTERS)
def test_slices_look_past_writes_to_other_slices(fn: Callable[..., Any], expected: list[str]) -> None:
    gm = canonical(fn, x(6, 24))
    assert ops(gm) == expected
    for node in gm.graph.nodes:
        if node.target is aten.slice.Tensor:
            memory = (n.meta["val"].untyped_storage()._cdata for n in (node, node.args[0]))
            assert len(set(memory)) == 1, "the recorded value lies where the slice now lies"


STILL_SCATTERED = [
    lambda a: scattered(a, 8, 16, slice(12, 20)) * 2,
    lambda a: scattered(a, 8, 16, slice(10, 16, 2)) * 2,
    lambda a: scattered(a, 8, 16, slice(10, 12), dense=True) * 2,
    lambda a: scattered(a, 8, 16, slice(0, 8)),
]


@pytest.mark.parametrize("fn", STILL_SCATTERED, ids=["overlap", "step", "other strides", "output"])
def test_other_slices_of_what_was_written_are_kept(fn: Callable[..., Any]) -> None:
    assert any(op.startswith("slice_scatter(") for op in ops(canonical(fn, x(6, 24))))


KEPT = [
    (lambda a: (a + 0.0).exp(), "add"),
    (lambda a: (a + 0).exp(), "add"),
    (lambda a: a.pow(3), "pow"),
    (lambda a: a.pow(2.5), "pow"),
    (lambda a: (a * 2).exp(), "mul"),
    (lambda a: (1.0 / a).exp(), "reciprocal"),
    (lambda a: (0 - a).exp(), "rsub"),
    (lambda a: torch.add(a, a, alpha=1).exp(), "add"),
    (lambda a: aten.add.Scalar(a, 1.0, 2).exp(), "add"),
    (lambda a: a.int().pow(2), "pow"),
]


@pytest.mark.parametrize(("fn", "kept"), KEPT)
def test_what_would_change_bits_or_dtype_is_kept(fn: Callable[..., Any], kept: str) -> None:
    values = torch.tensor([-0.0, 0.0, float("nan"), float("inf"), -1.5, 1e-45])
    assert any(op.startswith(f"{kept}(") for op in ops(canonical(fn, values)))


def test_square_has_the_bits_of_a_product() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = torch.cat(
            (x(4096, dtype=dtype), torch.tensor([-0.0, float("nan"), float("inf")], dtype=dtype))
        )
        canonical(lambda a: a.pow(2), values)


def test_integer_zero_is_removed_and_float_zero_is_not() -> None:
    positions = torch.arange(6)
    assert ops(canonical(lambda a: (a + 0) * 2, positions)) == ["mul(a_1, 2)"]
    assert ops(canonical(lambda a: (a * 1.0) * 2, positions)) == ["mul(a_1, 1.0)", "mul(%0, 2)"]


def test_equal_nodes_become_one() -> None:
    """Three projections of one reshaped value, as models without CSE have them."""

    def graph(a: Tensor, w: Tensor) -> Tensor:
        return (a.reshape(-1, 24) @ w.t()) + (a.reshape(-1, 24) @ w.t()) * 2

    gm = canonical(graph, x(2, 3, 24), x(8, 24))
    assert [op.split("(")[0] for op in ops(gm)] == ["reshape", "permute", "mm", "mul", "add"]


def test_numbers_of_different_type_are_different() -> None:
    def graph(a: Tensor) -> tuple[Tensor, ...]:
        return (a * 2).neg(), (a * 2.0).neg(), torch.full_like(a, 1).exp(), (a * -0.0).exp(), (a * 0.0).exp()

    gm = canonical(graph, torch.arange(4))
    assert sum(op.startswith("mul(") for op in ops(gm)) == 4


def test_random_numbers_are_drawn_as_often_as_before() -> None:
    gm = make_fx(lambda a: torch.rand_like(a) + torch.rand_like(a), tracing_mode="fake")(x(4))
    CanonicalizePass().run(gm, PassContext())
    assert sum(op.startswith("rand") for op in ops(gm)) == 2


def test_buffers_stay_apart() -> None:
    """Each is filled in place later; one for both would have to be copied."""

    def graph(a: Tensor) -> tuple[Tensor, Tensor]:
        first, second = a.new_zeros(4, 4), a.new_zeros(4, 4)
        return torch.select_scatter(first, a, 0, 1), torch.select_scatter(second, a, 0, 2)

    gm = canonical(graph, x(4))
    assert sum(op.startswith(("new_zeros", "zeros", "full")) for op in ops(gm)) == 2


def by_hand(build: Callable[[fx.Graph, fx.Node], object], *inputs: Tensor) -> Graph:
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("a_1")))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    FakeTensorProp(gm, FakeTensorMode()).propagate(*inputs)
    return gm


def test_reads_before_and_after_a_write_differ() -> None:
    def build(graph: fx.Graph, a: fx.Node) -> object:
        early = graph.call_function(aten.mul.Tensor, (a, 2.0))
        graph.call_function(aten.copy_.default, (a, early))
        late = graph.call_function(aten.mul.Tensor, (a, 2.0))
        again = graph.call_function(aten.mul.Tensor, (a, 2.0))
        return graph.call_function(aten.sub.Tensor, (late, early)), graph.call_function(
            aten.neg.default, (again,)
        )

    gm = checked(by_hand(build, x(4)), x(4))
    assert ops(gm).count("mul(a_1, 2.0)") == 2, "one before the write, one for both reads after it"


def test_writes_through_a_view_count_too() -> None:
    def build(graph: fx.Graph, a: fx.Node) -> object:
        early = graph.call_function(aten.sum.default, (a,))
        part = graph.call_function(aten.slice.Tensor, (a, 0, 0, 2))
        graph.call_function(aten.fill_.Scalar, (part, 7.0))
        return early, graph.call_function(aten.sum.default, (a,))

    assert sum(op.startswith("sum") for op in ops(checked(by_hand(build, x(4)), x(4)))) == 2


def test_a_value_that_is_written_to_stays_its_own() -> None:
    """Equal when made, but only one of them is overwritten."""

    def build(graph: fx.Graph, a: fx.Node) -> object:
        one, two, three = (graph.call_function(aten.mul.Tensor, (a, n)) for n in (2.0, 2.0, 1.0))
        graph.call_function(aten.fill_.Scalar, (two, 7.0))
        graph.call_function(aten.fill_.Scalar, (three, 7.0))
        return tuple(graph.call_function(aten.neg.default, (v,)) for v in (a, one, two, three))

    gm = checked(by_hand(build, x(4)), x(4))
    assert ops(gm).count("mul(a_1, 2.0)") == 2


def test_a_snapshot_of_what_is_written_later_is_kept() -> None:
    def build(graph: fx.Graph, a: fx.Node) -> object:
        snapshot = graph.call_function(aten.clone.default, (a,))
        graph.call_function(aten.fill_.Scalar, (a, 7.0))
        return graph.call_function(aten.neg.default, (snapshot,))

    assert ops(checked(by_hand(build, x(4)), x(4)))[0] == "clone(a_1)"


ALIASES = [
    lambda a: a * 1.0,
    lambda a: (a * 1.0).reshape(3, 4),
    lambda a: a.clone(),
    lambda a: (a * 1.0)[1:],
    lambda a: (a.t().reshape(-1)).reshape(4, 3).t(),
]


@pytest.mark.parametrize("fn", ALIASES)
def test_no_output_becomes_an_alias_of_an_input(fn: Callable[..., Any]) -> None:
    value = x(3, 4)
    gm = canonical(fn, value)
    assert gm(value).untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


def test_no_output_becomes_an_alias_of_another_output() -> None:
    value = x(3, 4)
    gm = canonical(lambda a: (a + 1, a + 1, (a + 1).reshape(-1)), value)
    results = gm(value)
    assert len({r.untyped_storage().data_ptr() for r in results}) == 3


def test_outputs_that_alias_go_on_doing_so() -> None:
    value = x(3, 4)
    gm = canonical(lambda a: (a.reshape(3, 4), a.split([1, 2])[1]), value)
    assert all(r.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() for r in gm(value))


def test_nothing_that_inductor_would_take_apart_is_put_in() -> None:
    gm = canonical(lambda a: a / (1 + torch.exp(-a)) * a, x(4))
    assert not any(op.startswith(("silu", "sigmoid")) for op in ops(gm))


def test_source_lines_survive() -> None:
    gm = make_fx(lambda a: a.split([16, 8], -1)[1].pow(2), tracing_mode="fake")(x(6, 24))
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f"line of {node.name}"
    CanonicalizePass().run(gm, PassContext())
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert [n.meta["stack_trace"] for n in calls] == ["line of getitem_1", "line of pow_1"]


def test_symbolic_sizes_are_left_alone_and_no_guard_is_added() -> None:
    def graph(a: Tensor) -> Tensor:
        rows = a.shape[0]
        return (a.reshape(rows, 2, 12).reshape(rows * 2, 12)[-3:] * 1.0).exp()

    gm = make_fx(graph, tracing_mode="symbolic")(x(6, 24))
    view_to_reshape(gm)
    sizes = [n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
    shape_env = sizes[0].fake_mode.shape_env
    guards = len(shape_env.guards)
    CanonicalizePass().run(gm, PassContext())
    gm.recompile()
    assert len(shape_env.guards) == guards
    for rows in (2, 6, 9):
        assert torch.equal(gm(x(rows, 24)), graph(x(rows, 24)))


def test_twice_is_once() -> None:
    gm = canonical(lambda a: a.reshape(2, -1).pow(2).split(6, 1)[1] * 1.0 + 1, x(3, 24))
    once = ops(gm)
    result = CanonicalizePass().run(gm, PassContext())
    assert ops(gm) == once
    assert not result.modified


@pytest.mark.parametrize("new", [(6,), (3, 2), (1, 2, 3), (2, 1, 3, 1), (2, 3), (3, 1, 2)])
@pytest.mark.parametrize("base", [(2, 3), (1, 6), (2, 1, 3), (6,)])
@pytest.mark.parametrize("step", [1, 2])
def test_view_strides_are_those_of_torch(base: tuple[int, ...], new: tuple[int, ...], step: int) -> None:
    """For contiguous, transposed and strided tensors: the same views are possible, with the same strides."""
    for source in (
        torch.empty(base),
        torch.empty(base).permute(*reversed(range(len(base)))),
        torch.empty((*base, 2))[..., 0][..., ::step],
    ):
        if source.numel() != 6:
            continue
        found = view_strides(source.shape, source.stride(), new)
        try:
            expected = source.view(new).stride()
        except RuntimeError:
            assert found is None
            continue
        assert found is not None
        assert all(a == b for n, a, b in zip(new, found, expected, strict=True) if n != 1)


def test_contiguous_strides() -> None:
    assert contiguous_strides((2, 0, 3)) == (3, 3, 1)
    assert contiguous_strides(()) == ()


def test_time_is_linear() -> None:
    """Twice the nodes take about twice the time, and 20,000 nodes a few seconds at most on a busy machine."""

    def seconds(layers: int) -> float:
        def graph(a: Tensor) -> Tensor:
            for _ in range(layers):
                left, right = a.reshape(2, -1).pow(2).split([12, 12], 1)
                a = (torch.cat((left * 1.0, right), 1).reshape(2, 24) + 1).neg()
            return a

        gm = make_fx(graph, tracing_mode="fake")(x(2, 24))
        start = time.process_time()
        CanonicalizePass().run(gm, PassContext())
        return time.process_time() - start

    seconds(10)
    small, large = min(seconds(100) for _ in range(2)), min(seconds(400) for _ in range(2))
    assert large < 8 * small + 0.05
