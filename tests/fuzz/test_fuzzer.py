"""The fuzzer itself: its graphs are those that Inductor makes, and what is broken on purpose is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
import torch
from graphfuzz.campaign import attempt, run_one
from graphfuzz.compose import compose
from graphfuzz.oracle import Settings
from graphfuzz.program import Program
from graphfuzz.shrink import shrunk
from graphfuzz.trace import finish, recorded, traced
from torch import fx

from kernelweld.codegen import reductions
from kernelweld.integrations.aot import capture
from kernelweld.ir import RMSNorm
from kernelweld.ir.printer import format_graph, format_value
from kernelweld.passes import packing, plan
from kernelweld.passes.canonicalize import canonicalize_pass, views
from kernelweld.passes.canonicalize.table import REWRITES
from kernelweld.patterns import rope_rotated, squares
from kernelweld.patterns.regions import Region

MANY = 200  # within so many programs a planted fault must show


def test_a_seed_is_a_program() -> None:
    assert compose(3).source(3) == compose(3).source(3)
    assert len({compose(seed).body() for seed in range(100)}) == 100


def test_programs_spell_every_word_and_every_kind_of_step() -> None:
    programs = [compose(seed) for seed in range(200)]
    meant = sum((p.meant for p in programs), Counter())
    assert min(meant[kind] for kind in ("rms_norm", "layer_norm", "l2_norm", "rope")) > 20
    assert any(p.writes for p in programs)
    shapes = {i.value.shape for p in programs for i in p.inputs}
    assert any(0 in shape for shape in shapes) and any(shape[-1:] == (1,) for shape in shapes)
    assert any(not x.is_contiguous() for p in programs for x in p.tensors(0))
    dtypes = {i.value.dtype for p in programs for i in p.inputs}
    assert dtypes == {torch.bfloat16, torch.float16, torch.float32}


@pytest.mark.parametrize("seed", [seed for seed in range(24) if not compose(seed).writes])
def test_recorded_graphs_are_those_of_make_fx(seed: int) -> None:
    program = compose(seed)
    mine, torchs = (
        finish(trace(program.function(), program.tensors(seed)), joint=False) for trace in (recorded, traced)
    )
    assert format_graph(mine.graph) == format_graph(torchs.graph)


@pytest.mark.parametrize("seed", [1, 2, 5, 7, 9, 14, 17, 23])
def test_graphs_are_those_of_a_capture(seed: int) -> None:
    """The same operators on the same shapes; Dynamo orders inputs by their first use."""
    program = compose(seed)
    mine = finish(recorded(program.function(), program.tensors(seed)), joint=True)
    (captured,) = capture(program.function(), program.tensors(seed)).graphs
    assert _operators(mine) == _operators(captured)


def _operators(gm: fx.GraphModule) -> Counter[str]:
    calls = (node for node in gm.graph.nodes if node.op == "call_function")
    return Counter(f"{node.target} {format_value(node.meta['val'])}" for node in calls)


def _wrong_divisor(patch: pytest.MonkeyPatch) -> None:
    """The reference of RMSNorm divides by N + 1."""
    reference = RMSNorm.reference

    def wrong(word: RMSNorm, x: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        n = x.shape[-1]
        return reference(replace(word, eps=word.eps * n / (n + 1)), x * (n / (n + 1)) ** 0.5, *others)

    patch.setattr(RMSNorm, "reference", wrong)


def _any_divisor(patch: pytest.MonkeyPatch) -> None:
    """A sum divided by any number is taken for a mean."""
    patch.setattr(squares, "close_to", lambda divisor, width: True)


def _any_order(patch: pytest.MonkeyPatch) -> None:
    """Which half of a rotation comes first does not matter."""
    paired = rope_rotated.paired

    def wrong(first: Region, second: Region, owner: fx.Node) -> tuple[Region, str]:
        return paired(*sorted((first, second), key=lambda half: half.start), owner)

    patch.setattr(rope_rotated, "paired", wrong)


def _no_convexity(patch: pytest.MonkeyPatch) -> None:
    """Chains that wait for each other share a launch."""
    patch.setattr(packing, "_joins", lambda contraction, pack, chain: True)
    patch.setattr(packing, "_levels", lambda graph, contraction: Counter())


def _stale_padding(patch: pytest.MonkeyPatch) -> None:
    """Padding counts as zeros whatever was computed there."""
    patch.setattr(reductions, "_masked", lambda scope, tile, filler: tile)


def _wandering_names(patch: pytest.MonkeyPatch) -> None:
    """Plans depend on how many were made before."""
    numbers = count()
    patch.setattr(plan, "weld_name", lambda chains: f"weld_{next(numbers)}")


def _forgotten_permute(patch: pytest.MonkeyPatch) -> None:
    """A permutation becomes the value that it permutes."""
    rewrites = {**REWRITES, views.PERMUTE: (lambda node, storage: node.args[0],)}
    patch.setattr(canonicalize_pass, "REWRITES", rewrites)


FAULTS = [
    (_wrong_divisor, "numerics reference"),
    (_any_divisor, "false word"),
    (_any_order, "false word"),
    (_no_convexity, ""),
    (_stale_padding, "numerics triton"),
    (_wandering_names, "plan"),
    (_forgotten_permute, ""),
]


@pytest.mark.parametrize(("plant", "kind"), FAULTS, ids=lambda v: getattr(v, "__name__", ""))
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    settings = Settings(interpret="triton" in kind)
    outcomes = (attempt(compose(seed), seed, settings) for seed in range(MANY))
    failure = next(outcome.failure for outcome in outcomes if outcome.failure is not None)
    assert failure.kind.startswith(kind), failure


def test_a_failing_program_shrinks_to_what_fails() -> None:
    def fails(candidate: Program) -> bool:
        return any("layer_norm" in line.template for line in candidate.lines)

    program = next(p for p in map(compose, range(MANY)) if len(p.lines) > 15 and fails(p))
    small = shrunk(program, fails)
    assert len(small.lines) == 1 and len(small.outputs) == 1
    assert small.function()(*small.tensors(0))[0].shape == small.outputs[0].shape


def test_a_report_says_how_to_see_the_failure_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _wandering_names(monkeypatch)
    seed, tally = next((s, t) for s in range(MANY) if (t := run_one(s, interpret_every=0)).failures)
    (failure,) = tally.failures
    assert f"python tests/fuzz --seed {seed} --interpret 0" in failure
    script = failure[failure.index("import torch") :]
    exec(script, {})
