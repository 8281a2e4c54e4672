"""``kernelweld bench`` without a GPU: which welds, which bytes, what goes where.

Kernels run interpreted, and the clock is scripted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from kernelweld.cli.benching import Bench, eager
from kernelweld.cli.main import app
from kernelweld.cli.targets import Target
from kernelweld.cli.welded import welded
from kernelweld.codegen.timing import rotations
from kernelweld.passes.verification.specimen import Draw

WIDTH, TOKENS = 96, 5

MODELS = """
import torch


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def step(x, r, w, m):
    r = r + x
    return r, torch.nn.functional.silu(norm(r, w) @ m) * x


def target(rows=3):
    draw = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16)
    return step, (draw(rows, 96), draw(rows, 96), draw(96), draw(96, 96)), {}


def of_no_rows():
    return target()


def nothing_to_weld():
    return torch.sin, (torch.randn(4, 8),), {}
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of targets in the current folder; its name is its own, so that no other test's is imported."""
    name = f"bench_models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


# --- one weld ---


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def twice(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two residual sums with their norms, of the same sizes: one weld, twice."""
    total = r + x
    y = norm(total, w) @ torch.eye(WIDTH, dtype=x.dtype)
    return total + y, norm(total + y, w)


def write(cache: torch.Tensor, x: torch.Tensor, w: torch.Tensor, slots: torch.Tensor) -> None:
    cache[slots] = norm(x, w)


def target(function: Callable[..., object], *shapes: tuple[int, ...], slots: int = 0) -> Target:
    tensors = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes]
    return Target(
        "test", function, (*tensors, *([torch.zeros(slots, dtype=torch.int64)] if slots else [])), {}
    )


ROWS = (TOKENS, WIDTH)


class Clock:
    """Runs what it is given once on each set of inputs, keeps both, and answers with scripted times."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)
        self.inputs: list[Sequence[Sequence[object]]] = []
        self.results: list[object] = []

    def __call__(self, function: Callable[..., object], inputs: Sequence[Sequence[object]]) -> float:
        self.inputs.append(inputs)
        self.results.append([function(*given) for given in inputs[:2]])
        return self.times.pop(0)


def test_layers_that_repeat_a_weld_are_one_entry() -> None:
    ((one, count),) = welded(target(twice, ROWS, ROWS, (WIDTH,))).welds
    assert (one.name, count) == ("residual_add_rms_norm", 2)


def test_figures_are_bytes_over_time() -> None:
    ((one, count),) = welded(target(twice, ROWS, ROWS, (WIDTH,))).welds
    clock = Clock(2.0, 7.0)
    found = Bench(bandwidth=1000.0, timer=clock, device="cpu").figures(one, count)
    moved = 4 * TOKENS * WIDTH * 2 + WIDTH * 2
    assert (found.rows, found.moved, found.us) == (TOKENS, moved, {"kernelweld": 2.0, "eager": 7.0})
    assert found.gb_per_s == pytest.approx(moved / 2e-6 / 1e9)
    assert found.copy_fraction == pytest.approx(moved / 2.0 / 1000.0)


def test_the_kernel_and_its_nodes_are_timed_on_the_same_random_inputs() -> None:
    ((one, count),) = welded(target(twice, ROWS, ROWS, (WIDTH,))).welds
    clock = Clock(1.0, 1.0)
    Bench(1.0, clock, "cpu").figures(one, count)
    draws: list[Draw] = [draw for (draw,) in clock.inputs[0]]  # type: ignore[misc]
    assert len(draws) == rotations(4 * TOKENS * WIDTH * 2) == 128
    assert all(isinstance(v, torch.Tensor) and v.float().std() > 0.5 for d in draws for v in d.values)
    assert not torch.equal(draws[0].values[0], draws[1].values[0])  # type: ignore[arg-type]
    for draw, plain in zip(draws, clock.results[1], strict=False):  # type: ignore[call-overload]
        for made, expected in zip(one.outputs(draw), plain, strict=True):
            torch.testing.assert_close(made, expected, rtol=2**-7, atol=1e-3)


def test_cache_writes_are_timed_in_place_and_to_distinct_places() -> None:
    ((one, count),) = welded(target(write, (64, WIDTH), ROWS, (WIDTH,), slots=TOKENS)).welds
    draw = one.draw(device="cpu")
    caches = [v for v in draw.values if isinstance(v, torch.Tensor) and v.shape == (64, WIDTH)]
    (slots,) = (v for v in draw.values if isinstance(v, torch.Tensor) and v.dtype == torch.int64)
    assert len(set(slots.tolist())) == TOKENS
    before = caches[0].clone()
    assert torch.equal(
        one.original(*draw.values)[0][slots], eager(one.original, "cpu")(*draw.values)[0][slots]
    )
    changed = (caches[0] != before).any(-1)
    assert changed.sum() == TOKENS and changed[slots].all()
    assert (
        Bench(1.0, Clock(1.0, 1.0), "cpu").figures(one, count).moved
        == (2 * TOKENS + 1) * WIDTH * 2 + 8 * TOKENS
    )


def test_a_weld_captured_without_memory_runs_elsewhere() -> None:
    """As with ``--full``: the graph stands on the meta device, its weld runs where it is told to."""
    inputs = (*(torch.empty(ROWS, dtype=torch.bfloat16, device="meta") for _ in range(2)),)
    weight = torch.empty(WIDTH, dtype=torch.bfloat16, device="meta")
    found = welded(Target("test", lambda x, r, w: (r + x, norm(r + x, w)), (*inputs, weight), {}), stop=True)
    ((one, _),) = found.welds
    draw = one.draw(device="cpu")
    one.launch(draw)
    for made, expected in zip(one.outputs(draw), eager(one.original, "cpu")(*draw.values), strict=True):
        torch.testing.assert_close(made, expected, rtol=2**-7, atol=1e-3)


def test_inductor_takes_part_when_asked() -> None:
    ((one, count),) = welded(target(twice, ROWS, ROWS, (WIDTH,))).welds
    clock = Clock(1.0, 2.0, 3.0)
    found = Bench(1.0, clock, "cpu", inductor=True).figures(one, count)
    assert found.us == {"kernelweld": 1.0, "eager": 2.0, "inductor": 3.0}
    for plain, compiled in zip(*clock.results[1:], strict=True):  # type: ignore[call-overload]
        torch.testing.assert_close(plain, compiled, rtol=2**-6, atol=1e-2)


def test_sets_of_inputs_hold_more_than_the_cache_within_reason() -> None:
    assert rotations(1) == 128
    assert rotations(16 << 20) * (16 << 20) == 128 << 20
    assert rotations(1 << 30) == 4


# --- the command ---


def test_a_dry_run_shows_welds_bytes_and_launches(models: str) -> None:
    result = run(f"{models}:target", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert f"{models}:target prefill\n" in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if "residual_add_rms_norm" in line]
    assert line.split() == ["1", "×", "residual_add_rms_norm", "3", f"{4 * 3 * 192 + 192:,}", "1", "→", "1"]
    assert "µs" not in result.stdout
    assert f"{models}:target prefill: " in result.stderr


def test_rows_in_turn_as_json(models: str) -> None:
    result = run(f"{models}:target", "--dry-run", "--rows", "1,64", "--weld", "gate_mul", "--json")
    assert result.exit_code == 0, result.stderr
    runs = json.loads(result.stdout)["runs"]
    assert [run["rows"] for run in runs] == [1, 64]
    for one in runs:
        (weld,) = one["welds"]
        assert weld == {
            "name": "gate_mul",
            "count": 1,
            "rows": one["rows"],
            "bytes": one["rows"] * 3 * 192,
            "launches": {"before": 1, "after": 1},
        }


def test_timed_figures_are_shown_and_written(models: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(bandwidth=100.0, timer=lambda function, inputs: 4.0, device="cpu")
    monkeypatch.setattr(Bench, "on_gpu", lambda **_: bench)
    monkeypatch.setattr("kernelweld.cli.bench._need_gpu", lambda: None)
    monkeypatch.setattr("kernelweld.codegen.tuning_file.gpu_name", lambda: "a GPU")
    shown = run(f"{models}:target", "--rows", "50", "--weld", "gate_mul")
    assert shown.exit_code == 0, shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if "gate_mul" in line]
    assert line.split()[-4:] == ["4.00", "7", "7200%", "4.00"]
    written = json.loads(run(f"{models}:target", "--rows", "50", "--weld", "gate_mul", "--json").stdout)
    assert (written["gpu"], written["copy_gb_per_s"]) == ("a GPU", 0.1)
    (weld,) = written["runs"][0]["welds"]
    assert weld["us"] == {"kernelweld": 4.0, "eager": 4.0}
    assert math.isclose(weld["copy_fraction"], 50 * 3 * 192 / 4.0 / 100.0)


def test_a_target_without_welds(models: str) -> None:
    result = run(f"{models}:nothing_to_weld", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "no welds" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_before_it_builds_anything() -> None:
    result = run("hf:there_is_no_such_model")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error: kernels cannot be timed here: torch sees no CUDA device" in result.stderr
    assert "or pass --dry-run" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{}:target", "--weld", "gate_mull"), "unknown weld 'gate_mull'; did you mean 'gate_mul'?"),
        (("{}:of_no_rows", "--rows", "4"), "it takes no number of rows"),
        (("{}:target", "--rows", "4,x"), "give positive numbers such as 1,64,2048"),
        (("{}:target", "--rows", "0"), "give positive numbers such as 1,64,2048"),
        (("{}:target", "--rows", "4", "--batch", "2"), "it does not go with --batch"),
        (("program.pt2", "--rows", "4"), "a saved program has the rows that it was saved with"),
    ],
)
def test_mistakes_end_with_exit_code_2(models: str, arguments: tuple[str, ...], message: str) -> None:
    result = run(*(argument.format(models) for argument in arguments), "--dry-run")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.hf
@pytest.mark.parametrize(("phase", "rows"), [("prefill", 40), ("decode", 3)])
def test_rows_of_a_transformers_model(phase: str, rows: int) -> None:
    options = ("--phase", phase, "--rows", str(rows), "--layers", "1", "--dry-run", "--json")
    (one,) = json.loads(run("hf:llama", *options, "--cache", "static").stdout)["runs"]
    assert {weld["rows"] for weld in one["welds"] if weld["name"] == "residual_add_rms_norm"} == {rows}
