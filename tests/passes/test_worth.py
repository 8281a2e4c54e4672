"""The rule that no weld costs launches: what is given up, what is kept, the reasons, and the cost of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.cli.captured import PIPELINE, captured
from kernelweld.cli.targets import resolve
from kernelweld.integrations.aot import capture
from kernelweld.ir import word_of
from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize import CanonicalizePass
from kernelweld.passes.chaining import Chainer
from kernelweld.passes.launches import predict
from kernelweld.passes.lower import LowerPass
from kernelweld.passes.packing import pack
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.plan import PlanPass
from kernelweld.passes.raise_words import RaisePass
from kernelweld.passes.summary import run_reported
from kernelweld.passes.weld import Chain, Weld, WeldPlan
from kernelweld.passes.worth import Loss, weigh

D = 64
bf16 = torch.bfloat16

Function = Callable[..., object]


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(bf16)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def l2_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


# --- graphs ---


def delta_step(x: Tensor, w: Tensor, state: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """A decode step of a gated delta network: convolution, silu, heads repeated, l2 norms, the recurrence."""
    mixed = F.silu(F.conv1d(x, w, groups=x.shape[1])[..., -1:]).transpose(1, 2)
    q, k, v = mixed.split([2 * D, 2 * D, 4 * D], -1)
    q, k = (part.reshape(1, 1, 2, D).repeat_interleave(2, 2) for part in (q, k))
    q, k, v = (part.reshape(1, 1, 4, D).transpose(1, 2).contiguous().float() for part in (q, k, v))
    q, k, v = l2_norm(q)[:, :, 0] * D**-0.5, l2_norm(k)[:, :, 0], v[:, :, 0]
    decayed = state * g.exp()[..., None, None]
    delta = (v - (decayed * k.unsqueeze(-1)).sum(-2)) * beta[..., None]
    state.copy_(decayed + k.unsqueeze(-1) * delta.unsqueeze(-2))
    return (state * q.unsqueeze(-1)).sum(-2).to(bf16)


def masked_gate(x: Tensor, up: Tensor, down: Tensor, ends: Tensor, expert: Tensor) -> Tensor:
    """An expert's gate whose rows beyond the last expert are masked, between two grouped GEMMs."""
    both = torch._grouped_mm(x, up, ends)
    gate, value = both.masked_fill((expert >= 2).unsqueeze(-1), 0.0).chunk(2, -1)
    return torch._grouped_mm(F.silu(gate) * value, down, ends)


def plain_gate(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, value = (x @ up).chunk(2, -1)
    return (F.silu(gate) * value) @ down


def norm_of_rows(table: Tensor, ids: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Inductor gathers the rows in the kernel that normalises them."""
    return rms_norm(F.embedding(ids, table), w) @ p


def residual_norm(x: Tensor, r: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    total = r + (x @ p).unsqueeze(0)
    return total, rms_norm(total, w)


def norm_and_rope(x: Tensor, p: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of different head counts: Inductor needs several kernels, a pack is one."""
    q, k = (part.reshape(1, 3, -1, D).transpose(1, 2) for part in (x @ p).split([4 * D, 2 * D], -1))
    return rope(rms_norm(q, w), cos, sin), rope(rms_norm(k, w), cos, sin)


def pack_and_lookup(
    x: Tensor, p: Tensor, w: Tensor, cos: Tensor, sin: Tensor, table: Tensor, ids: Tensor
) -> tuple[object, ...]:
    """The pack of ``norm_and_rope`` and, at its level, a norm that stands between a gather and a mask."""
    looked_up = rms_norm(F.embedding(ids, table), w).masked_fill((ids == 0).unsqueeze(-1), 0.0)
    return *norm_and_rope(x, p, w, cos, sin), looked_up


ROPED = (rand(3, D), rand(D, 6 * D), rand(D), rand(3, D), rand(3, D))
ROWS = (rand(100, D), torch.tensor([3, 1, 4]))
DELTA = (rand(1, 8 * D, 4), rand(8 * D, 1, 4), torch.randn(1, 4, D, D), torch.randn(1, 4), torch.rand(1, 4))
ENDS, EXPERT = torch.tensor([5, 8], dtype=torch.int32), torch.tensor([0] * 5 + [1] * 3)
ROTATED = (rand(3, D), rand(D, 8 * D), torch.arange(3).float(), torch.rand(D // 2), rand(4, 5, D))
MASKED = (rand(8, D), rand(2, D, 2 * D), rand(2, D, D), ENDS, EXPERT)


def rotated_layers(x: Tensor, p: Tensor, positions: Tensor, frequencies: Tensor, cache: Tensor) -> Tensor:
    """Two layers whose rotations share a table, which Inductor would compute again wherever it is used."""
    angles = positions[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos().to(bf16), angles.sin().to(bf16)
    for _ in range(2):
        heads = (x @ p).reshape(3, 8, D).transpose(0, 1)
        q, k = rope(heads[:4], cos, sin), torch.cat([cache, rope(heads[4:], cos, sin)], 1)
        x = (q @ k.transpose(1, 2) @ k)[0]
    return x


def layers(count: int) -> Function:
    """A model of ``count`` equal layers, each with a weld to keep and a gate that is not worth one."""

    def fn(x: Tensor, w: Tensor, p: Tensor, up: Tensor, down: Tensor, ends: Tensor, expert: Tensor) -> Tensor:
        for _ in range(count):
            x = x + (rms_norm(x, w)[0] @ p).unsqueeze(0)
            y = rms_norm(x, w)
            x = x + masked_gate(y[0], up, down, ends, expert).unsqueeze(0)
        return x

    return fn


LAYERED = (rand(1, 8, D), rand(D), rand(D, D), *MASKED[1:])


# --- planning ---


@dataclass(frozen=True)
class Planned:
    """The plan of a graph, and the predicted launches without and with its welds."""

    plan: WeldPlan
    before: int
    after: int

    @property
    def welds(self) -> list[str]:
        return [weld.name for weld in self.plan.welds]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(miss.kind, miss.reason) for miss in self.plan.near_misses]


def raised(fn: Function, inputs: Sequence[object]) -> fx.GraphModule:
    (gm,) = capture(fn, inputs).graphs
    CanonicalizePass().run(gm, PassContext())
    RaisePass().run(gm, PassContext())
    return gm


def planned(fn: Function, inputs: Sequence[object], *, keep_all: bool = False) -> Planned:
    gm, context = raised(fn, inputs), PassContext()
    before = predict(gm.graph)
    PlanPass(keep_all=keep_all).run(gm, context)
    plan = context.plan
    assert plan is not None
    return Planned(plan, before, lowered(gm, plan.welds))


def lowered(gm: fx.GraphModule, welds: Sequence[Weld]) -> int:
    """The predicted launches of ``gm`` after lowering ``welds``; ``gm`` is used up."""
    context = PassContext(plan=WeldPlan(tuple(welds)))
    LowerPass(target="triton").run(gm, context)
    return predict(gm.graph)


def packs_of(graph: fx.Graph) -> list[tuple[Chain, ...]]:
    """All packs, worth it or not."""
    chains = [Chain(steps) for steps in Chainer(graph).run(graph)]
    return pack(graph, [chain for chain in chains if chain.words], 8)


def not_worth(welded: int, fused: int) -> str:
    return (
        "not welded: Inductor fuses it with its neighbours; a kernel of its own would be one launch more "
        f"({welded} instead of {fused})"
    )


# --- given up ---


def test_norms_amid_what_inductor_fuses_are_not_welded() -> None:
    free, forced = planned(delta_step, DELTA), planned(delta_step, DELTA, keep_all=True)
    assert forced.welds == ["l2_norm"] and forced.after == forced.before + 1
    assert free.welds == [] and free.after == free.before
    assert free.reasons == [("l2_norm", not_worth(4, 3))] * 2


def test_a_gate_behind_a_mask_is_not_welded() -> None:
    free, forced = planned(masked_gate, MASKED), planned(masked_gate, MASKED, keep_all=True)
    assert forced.welds == ["gate_mul"] and forced.after == forced.before + 1
    assert free.welds == [] and free.after == free.before
    assert free.reasons == [("gate_mul", not_worth(2, 1))]


def test_a_norm_of_gathered_rows_is_not_welded() -> None:
    found = planned(norm_of_rows, (*ROWS, rand(D), rand(D, D)))
    assert found.welds == [] and found.after == found.before
    assert found.reasons == [("rms_norm", not_worth(2, 1))]


def test_a_pack_loses_only_the_chain_that_costs_launches() -> None:
    inputs = (*ROPED, *ROWS)
    forced, free = planned(pack_and_lookup, inputs, keep_all=True), planned(pack_and_lookup, inputs)
    assert forced.welds == ["rms_norm_rope__rms_norm"]
    assert free.welds == ["rms_norm_rope"] and len(free.plan.welds[0].chains) == 2
    assert free.after == forced.after - 1
    assert free.reasons == [("rms_norm", not_worth(3, 2))]


def test_welds_that_cost_a_table_together_are_not_made() -> None:
    """Each of them alone costs nothing: the table is written for the other one anyway."""

    def of(chosen: slice) -> int:
        gm, context = raised(rotated_layers, ROTATED), PassContext()
        PlanPass(keep_all=True).run(gm, context)
        assert context.plan is not None and [weld.name for weld in context.plan.welds] == ["rope", "rope"]
        return lowered(gm, context.plan.welds[chosen])

    free = planned(rotated_layers, ROTATED)
    assert of(slice(0, 2)) == of(slice(0, 1)) == of(slice(1, 2)) == free.before + 1
    assert free.welds == [] and free.after == free.before
    assert [reason for reason in free.reasons if reason[0] == "rope"] == [("rope", not_worth(5, 4))] * 4
    assert [kind for kind, _ in free.reasons if kind != "rope"] == ["rope_table"]


# --- kept ---

KEPT: dict[str, tuple[Function, tuple[Tensor, ...], list[str]]] = {
    "a lone norm": (rms_norm, (rand(3, D), rand(D)), ["rms_norm"]),
    "a residual sum and its norm": (
        residual_norm,
        (rand(3, D), rand(1, 3, D), rand(D), rand(D, D)),
        ["residual_add_rms_norm"],
    ),
    "norms and rotations": (norm_and_rope, ROPED, ["rms_norm_rope"]),
    "a gate between gemms": (plain_gate, (rand(3, D), rand(D, 2 * D), rand(D, D)), ["gate_mul"]),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_saves_launches_or_costs_none_is_welded(name: str) -> None:
    fn, inputs, welds = KEPT[name]
    found = planned(fn, inputs)
    assert found.welds == welds
    assert found.reasons == []
    assert found.after <= found.before


def test_a_pack_saves_launches() -> None:
    found = planned(norm_and_rope, ROPED)
    assert found.before - found.after == 1


# --- the rule as a whole ---

ALL: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "delta step": (delta_step, DELTA),
    "masked gate": (masked_gate, MASKED),
    "norm of rows": (norm_of_rows, (*ROWS, rand(D), rand(D, D))),
    "pack and lookup": (pack_and_lookup, (*ROPED, *ROWS)),
    "rotated layers": (rotated_layers, ROTATED),
    "three layers": (layers(3), LAYERED),
}


@pytest.mark.parametrize("name", ALL)
def test_the_whole_graph_agrees(name: str) -> None:
    """What is decided around each weld is right for the graph: dropping a kept weld saves nothing."""
    fn, inputs = ALL[name]
    found = planned(fn, inputs)
    assert found.after <= found.before
    for i in range(len(found.plan.welds)):
        gm, context = raised(fn, inputs), PassContext()
        PlanPass().run(gm, context)
        assert context.plan is not None
        assert lowered(gm, [weld for j, weld in enumerate(context.plan.welds) if j != i]) >= found.after


@pytest.mark.parametrize("name", ALL)
def test_the_same_graph_has_the_same_plan(name: str) -> None:
    fn, inputs = ALL[name]
    one, other = planned(fn, inputs).plan, planned(fn, inputs).plan
    assert one.reports == other.reports
    assert one.near_misses == other.near_misses


def test_the_graph_stays_as_it_was() -> None:
    gm = raised(layers(2), LAYERED)
    before = str(gm.graph)
    assert weigh(gm.graph, packs_of(gm.graph)).losses
    assert str(gm.graph) == before


def test_restored_words_compute_the_same() -> None:
    gm = raised(masked_gate, MASKED)
    expected = masked_gate(*MASKED)
    context = PassContext()
    PlanPass().run(gm, context)
    LowerPass(target="triton").run(gm, context)
    assert not any(word_of(node) for node in gm.graph.nodes)
    gm.recompile()
    (result,) = gm(*capture(masked_gate, MASKED).inputs[0])
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_a_loss_says_both_numbers() -> None:
    assert str(Loss(4, 3)).endswith("a kernel of its own would be one launch more (4 instead of 3)")
    assert str(Loss(10, 8)).endswith("a kernel of its own would be 2 launches more (10 instead of 8)")


def test_the_option_is_part_of_the_pipeline() -> None:
    text = "plan{keep-all=true}"
    (plan,) = Pipeline.from_text(text).passes
    assert plan == PlanPass(keep_all=True)


# --- cost ---


def repeated(count: int) -> fx.Graph:
    """The raised graph of so many layers; more than share a value by which Inductor fuses."""
    decompositions = select_decomp_table()
    gm = make_fx(layers(count), decomposition_table=decompositions, tracing_mode="fake")(*LAYERED)
    CanonicalizePass().run(gm, PassContext())
    RaisePass().run(gm, PassContext())
    return gm.graph


def predictions(graph: fx.Graph, monkeypatch: pytest.MonkeyPatch) -> int:
    count = 0

    def counted(miniature: fx.Graph) -> int:
        nonlocal count
        count += 1
        return predict(miniature)

    with monkeypatch.context() as patch:
        patch.setattr("kernelweld.passes.miniature.predict", counted)
        weigh(graph, packs_of(graph))
    return count


def test_equal_layers_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = repeated(40), repeated(50)
    assert predictions(few, monkeypatch) == predictions(many, monkeypatch) > 0


def test_time_is_linear() -> None:
    small, large = repeated(20), repeated(80)

    def seconds(graph: fx.Graph) -> float:
        packs = packs_of(graph)
        return min(_timed(graph, packs) for _ in range(3))

    assert math.log(seconds(large) / seconds(small), 4) < 1.5  # quadratic is 2; a busy machine adds noise


def _timed(graph: fx.Graph, packs: Sequence[tuple[Chain, ...]]) -> float:
    start = time.process_time()
    weigh(graph, packs)
    return time.process_time() - start


# --- models ---


@pytest.mark.hf
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["qwen3_5_moe", "llama", "minimax_m2", "deepseek_v32"])
def test_no_model_gets_more_launches(name: str, phase: str) -> None:
    target = resolve(f"hf:{name}", phase=phase)
    (graph,) = captured(target).graphs
    _, report = run_reported(Pipeline.from_text(PIPELINE), graph)
    assert report.launches.after < report.launches.before
    assert all(miss.reason.startswith("not welded: ") for miss in report.near_misses)
