"""``only-welds`` and the ids that it goes by: what is dropped, what is left, what ids depend on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.errors import BadPipeline
from kernelweld.ir.printer import format_graph
from kernelweld.passes.editing import before_lower, lower_of, lowered_by, on_the_plan
from kernelweld.passes.only_welds import OnlyWeldsPass
from kernelweld.passes.pipeline import Pipeline, PipelineResult
from kernelweld.passes.weld_ids import weld_ids

PLANNED = "canonicalize,raise,plan"


def norm(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps))


def three(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two welds that are equal, with another between."""
    x = torch.mm(norm(x, w), m)
    x = torch.mm(norm(x, w, 1e-3), m)
    return x, norm(x, w)


def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(3, 32), torch.randn(32), torch.randn(32, 32)


def graph(fn: Callable[..., object] = three, *args: torch.Tensor) -> fx.GraphModule:
    return make_fx(fn, tracing_mode="fake")(*(args or inputs()))


def ids_of(gm: fx.GraphModule) -> list[str]:
    plan = Pipeline.from_text(PLANNED, strict=True).run(gm).context.plan
    assert plan is not None
    return list(weld_ids(gm.graph, plan.welds).values())


def run(text: str, gm: fx.GraphModule) -> PipelineResult:
    return Pipeline.from_text(text, strict=True).run(gm)


def launched(gm: fx.GraphModule) -> int:
    return format_graph(gm.graph).count("launch ")


IDS = ["e428a004.0", "d9372ba4.0", "e428a004.1"]


def test_ids_are_the_same_in_every_process() -> None:
    assert ids_of(graph()) == IDS


def test_ids_do_not_depend_on_the_rest_of_the_graph() -> None:
    def longer(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *three(torch.mm(x.sin(), m), w, m), x.cos()

    assert ids_of(graph(longer)) == IDS


def test_other_sizes_are_other_welds() -> None:
    args = (torch.randn(5, 32), torch.randn(32), torch.randn(32, 32))
    assert set(ids_of(graph(three, *args))).isdisjoint(IDS)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("", []),
        ("{{ids={0}}}", [0]),
        ("{{ids={2},{1},00000000.0}}", [1, 2]),
        ("{{without={1}}}", [0, 2]),
        ("{{without=00000000.0}}", [0, 1, 2]),
    ],
)
def test_what_is_kept(options: str, kept: list[int]) -> None:
    gm, args = graph(), inputs()
    expected = gm(*args)
    text = f"{PLANNED},only-welds{options.format(*IDS)},lower{{target=triton}}"
    result = run(text, gm)
    plan = result.context.plan
    assert plan is not None
    assert (len(plan.welds), len(plan.reports), launched(gm)) == (len(kept),) * 3
    assert result.steps[3].result.count == len(kept)
    assert str(Pipeline.from_text(text)) == text
    with exact_casts():
        for value, wanted in zip(gm(*args), expected, strict=True):
            torch.testing.assert_close(value, wanted)


def test_what_is_dropped_is_restored_to_its_nodes() -> None:
    dropped, never = graph(), graph()
    run(f"{PLANNED},only-welds,lower", dropped)
    run("canonicalize", never)
    assert format_graph(dropped.graph) == format_graph(never.graph)


def test_without_a_plan_it_does_nothing() -> None:
    gm = graph()
    before = format_graph(gm.graph)
    result = run("only-welds", gm)
    assert (format_graph(gm.graph), result.context.plan) == (before, None)


def test_to_keep_and_to_drop_is_a_contradiction() -> None:
    with pytest.raises(BadPipeline, match="give ids or without, not both"):
        Pipeline.from_text("plan,only-welds{ids=a.0 without=b.0},lower")


# --- pipelines made of others ---


def passes(text: str) -> tuple:  # type: ignore[type-arg]
    return Pipeline.from_text(text).passes


@pytest.mark.parametrize(
    ("text", "before", "on_plan"),
    [
        ("plan,lower", "plan,only-welds,lower", "plan,only-welds,lower"),
        (
            "plan,verify-welds,lower",
            "plan,verify-welds,only-welds,lower",
            "plan,only-welds,verify-welds,lower",
        ),
        ("plan", "plan,only-welds", "plan,only-welds"),
        ("lower,canonicalize", "only-welds,lower,canonicalize", "only-welds,lower,canonicalize"),
    ],
)
def test_where_passes_are_put_in(text: str, before: str, on_plan: str) -> None:
    only = OnlyWeldsPass()
    assert str(Pipeline(before_lower(passes(text), only))) == before
    assert str(Pipeline(on_the_plan(passes(text), only))) == on_plan


def test_another_lower_takes_the_place_of_one_without_options() -> None:
    lower = lower_of(passes("plan,lower{target=triton}"))
    for given, expected in (
        ("plan,lower", "plan,lower{target=triton}"),
        ("plan,lower{target=reference}", "plan,lower{target=reference}"),
        ("plan", "plan"),
    ):
        assert str(Pipeline(lowered_by(passes(given), lower))) == expected
    assert str(Pipeline(lowered_by(passes("lower"), lower_of(passes("plan"))))) == "lower"


def test_a_name_stands_for_all_welds_of_that_name() -> None:
    """Where a log tells names of kernels, and no ids."""
    gm = graph()
    result = run(f"{PLANNED},only-welds{{without=rms_norm}},lower{{target=triton}}", gm)
    assert launched(gm) == 0
    assert sorted(result.context.left_out) == sorted(("rms_norm", one) for one in IDS)
    gm = graph()
    run(f"{PLANNED},only-welds{{ids=rms_norm}},lower{{target=triton}}", gm)
    assert launched(gm) == len(IDS)
    gm = graph()
    run(f"{PLANNED},only-welds{{without=rope}},lower{{target=triton}}", gm)
    assert launched(gm) == len(IDS)
