"""The plan: which words share a weld, which do not, and why."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernelweld.codegen.emit import emit
from kernelweld.integrations.aot import capture
from kernelweld.passes.base import PassContext
from kernelweld.passes.launcher import program_of
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.weld import WeldPlan

Tensor = torch.Tensor


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def plan(fn: Callable[..., object], *args: Tensor, options: str = "keep-all=true") -> WeldPlan:
    gm = capture(fn, args).graphs[0]
    context = PassContext()
    for step in Pipeline.from_text(f"canonicalize,raise,plan{{{options}}}").passes:
        step.run(gm, context)
    assert context.plan is not None
    return context.plan


def shapes(found: WeldPlan) -> list[tuple[str, list[int]]]:
    return [(weld.name, [len(chain.words) for chain in weld.chains]) for weld in found.welds]


def rand(*shape: int) -> Tensor:
    return torch.randn(shape)


def test_a_chain_is_one_task_through_views() -> None:
    def chain(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rope(norm(x.view(6, 2, 16), w).transpose(0, 1), cos, sin)

    assert shapes(plan(chain, rand(6, 32), rand(16), rand(6, 16), rand(6, 16))) == [("rms_norm_rope", [2])]


def test_a_norm_over_all_heads_and_a_rope_of_each_are_one_task() -> None:
    def chain(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rope(norm(x, w).view(6, 2, 16).transpose(0, 1), cos, sin)

    (weld,) = plan(chain, rand(6, 32), rand(32), rand(6, 16), rand(6, 16)).welds
    assert [len(chain.words) for chain in weld.chains] == [2]


def test_independent_chains_of_unequal_width_share_a_launch() -> None:
    def pack(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return norm(x, w), norm(y, v)

    assert shapes(plan(pack, rand(5, 96), rand(5, 32), rand(96), rand(32))) == [("rms_norm", [1, 1])]


def test_a_view_of_an_operand_is_no_launch_to_wait_for() -> None:
    def pack(x: Tensor, y: Tensor, w: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return norm(x, w), norm(y[1], weights[1])

    found = plan(pack, rand(3, 16), rand(2, 5, 32), rand(16), rand(2, 32))
    assert shapes(found) == [("rms_norm", [1, 1])]


def test_max_tasks_limits_a_pack() -> None:
    def pack(*xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(norm(x, x[0]) for x in xs)

    found = plan(pack, *(rand(4, 8 * i) for i in range(1, 6)), options="max-tasks=2 keep-all=true")
    assert [len(weld.chains) for weld in found.welds] == [2, 2, 1]


def test_a_gemm_between_two_words_keeps_them_apart() -> None:
    def layer(x: Tensor, w: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return norm(norm(x, w) @ m, v)

    assert shapes(plan(layer, rand(5, 32), rand(32), rand(32, 16), rand(16))) == [
        ("rms_norm", [1]),
        ("rms_norm", [1]),
    ]


def test_what_depends_on_a_weld_through_a_gemm_is_not_packed_with_it() -> None:
    def layer(x: Tensor, y: Tensor, w: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        first = norm(x, w)
        return norm(first @ m, w), norm(y, w)

    found = plan(layer, rand(5, 32), rand(5, 32), rand(32), rand(32, 32))
    assert sorted(len(weld.chains) for weld in found.welds) == [1, 2]


def test_a_shared_cast_does_not_make_one_chain_wait_for_another() -> None:
    def pack(q: Tensor, k: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        c, s = cos.to(q.dtype), sin.to(q.dtype)
        return rope(norm(q, w), c, s), rope(norm(k, w), c, s)

    q, k, w = (t.bfloat16() for t in (rand(3, 4, 16), rand(3, 4, 16), rand(16)))
    assert [len(weld.chains) for weld in plan(pack, q, k, w, rand(4, 16), rand(4, 16)).welds] == [2]


def test_a_residual_with_two_users_is_stored_by_the_weld_that_adds_it() -> None:
    def layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return norm(h, w), h

    assert shapes(plan(layer, rand(5, 32), rand(5, 32), rand(32))) == [("residual_add_rms_norm", [2])]


def test_loads_stand_before_stores_in_the_kernel() -> None:
    """A load behind a store waits for it, as far as a compiler can tell: the weight behind the sum."""

    def chain(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return total, norm(total, w)

    (weld,) = plan(chain, rand(4, 64), rand(4, 64), rand(64)).welds
    source = emit(program_of(weld)[0]).source
    assert source.count("tl.store(") == 2
    assert source.rfind("tl.load(") < source.find("tl.store(")


def test_the_same_graph_gives_the_same_plan() -> None:
    def pack(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return norm(x, w), norm(y, w)

    arguments = rand(5, 32), rand(7, 32), rand(32)
    assert plan(pack, *arguments).reports == plan(pack, *arguments).reports
