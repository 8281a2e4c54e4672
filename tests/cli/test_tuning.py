"""The search for a launch on scripted times: what may win, and what is kept and used afterwards."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import kernelweld
from kernelweld.cli.benching import Bench
from kernelweld.cli.main import app
from kernelweld.cli.targets import Target
from kernelweld.cli.tuning import Search
from kernelweld.cli.welded import welded
from kernelweld.codegen.cache import load
from kernelweld.codegen.emit import Kernel
from kernelweld.codegen.launch import Launch, candidates, choose
from kernelweld.codegen.run import launch_direct
from kernelweld.codegen.tuning import Entry, Tuning, kernel_key
from kernelweld.codegen.tuning_file import read_tuning, write_tuning
from kernelweld.errors import CodegenFailed, KernelweldWarning
from kernelweld.integrations.hook import KernelweldPass
from kernelweld.passes.verification.specimen import Draw, Specimen

ROWS, WIDTH = 6, 96
WIDE = Launch(2, 1, (16,))


def gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x) * y


def write(cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> None:
    h = x.float()
    cache[slots] = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def specimen_of(function: Callable[..., object], *inputs: torch.Tensor) -> Specimen:
    ((one, _),) = welded(Target("test", function, inputs, {})).welds
    return one


@pytest.fixture(scope="module")
def gated() -> Specimen:
    return specimen_of(gate, *(torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16) for _ in range(2)))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "cache"))


@dataclass
class Watched:
    """A specimen whose launches are recorded; ``spoil`` changes what a launch wrote, or raises."""

    one: Specimen
    spoil: Callable[[Draw, Launch | None], None] = lambda draw, launch: None
    launched: list[Launch | None] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.one, name)

    def launch(self, draw: Draw, launch: Launch | None = None) -> None:
        self.launched.append(launch)
        self.one.launch(draw, launch)
        self.spoil(draw, launch)


class Clock:
    """Times by launch: 10 µs unless said otherwise, one after the other where there are several."""

    def __init__(self, watched: Watched, times: dict[Launch | None, Sequence[float]]) -> None:
        self._watched, self._times = watched, {k: list(v) for k, v in times.items()}

    def __call__(self, function: Callable[..., object], inputs: Sequence[Sequence[object]]) -> float:
        function(*inputs[0])
        script = self._times.get(self._watched.launched[-1])
        return 10.0 if script is None else script.pop(0) if len(script) > 1 else script[0]


def search(watched: Watched, times: dict[Launch | None, Sequence[float]]) -> Entry:
    draws = [watched.one.draw(seed, "cpu") for seed in range(2)]
    return Search(watched, draws, Clock(watched, times)).entry()  # type: ignore[arg-type]


# --- what may win ---


def test_the_fastest_launch_wins(gated: Specimen) -> None:
    watched = Watched(gated)
    assert WIDE in candidates(gated.program)
    found = search(watched, {None: [8.0], WIDE: [5.0], Launch(4, 1, (4,)): [7.0]})
    assert found == Entry(kernel_key(gated.program), 4, WIDE, 5.0, 8.0)
    assert set(candidates(gated.program)) | {None} == set(watched.launched), "every candidate was tried"


@pytest.mark.parametrize("times", [[9.8], [5.0, 9.9]], ids=["within noise", "only once"])
def test_a_launch_that_is_hardly_faster_loses(gated: Specimen, times: list[float]) -> None:
    found = search(Watched(gated), {None: [10.0], WIDE: times})
    assert (found.launch, found.us, found.default_us) == (choose(gated.program), 10.0, 10.0)


def wrong_element(draw: Draw, launch: Launch | None) -> None:
    if launch == WIDE:
        draw.tensors["gate_mul_out_ptr"].view(torch.int16).view(-1)[-1] ^= 1


def nothing_written(draw: Draw, launch: Launch | None) -> None:
    if launch == WIDE:
        draw.tensors["gate_mul_out_ptr"].view(-1)[200:400] = float("nan")


def does_not_run(draw: Draw, launch: Launch | None) -> None:
    if launch == WIDE:
        raise CodegenFailed("gate_mul", "on purpose")


@pytest.mark.parametrize("spoil", [wrong_element, nothing_written, does_not_run])
def test_a_launch_with_other_bits_never_wins(gated: Specimen, spoil: Callable[..., None]) -> None:
    found = search(Watched(gated, spoil), {WIDE: [0.1], Launch(4, 1, (4,)): [6.0]})
    assert (found.launch, found.us) == (Launch(4, 1, (4,)), 6.0)


def test_one_draw_with_other_bits_is_enough(gated: Specimen) -> None:
    launches = iter(range(100))

    def wrong_from_the_second_time(draw: Draw, launch: Launch | None) -> None:
        if launch == WIDE and next(launches) > 0:
            wrong_element(draw, launch)

    assert search(Watched(gated, wrong_from_the_second_time), {WIDE: [0.1]}).launch == choose(gated.program)


def test_a_launch_that_fails_to_write_a_cache_never_wins() -> None:
    """What the default launch wrote there before must not hide it."""
    bf16, slots = torch.bfloat16, torch.zeros(ROWS, dtype=torch.int64)
    one = specimen_of(write, torch.zeros(32, WIDTH, dtype=bf16), torch.zeros(ROWS, WIDTH, dtype=bf16), slots)
    (part,) = one.caches
    lazy = candidates(one.program)[0]

    class Lazy(Watched):
        def launch(self, draw: Draw, launch: Launch | None = None) -> None:
            self.launched.append(launch)
            if launch != lazy:
                self.one.launch(draw, launch)

    other = candidates(one.program)[1]
    assert search(Lazy(one), {lazy: [0.1], other: [0.2]}).launch == other
    draw = one.draw(device="cpu")
    before = draw.tensors[part.argument].clone()
    search(Watched(one), {})
    one.launch(draw)
    assert not torch.equal(draw.tensors[part.argument], before)


# --- what is kept and used ---


def test_what_was_found_is_kept_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gated: Specimen
) -> None:
    """From ``bench --tune`` to the launch of a fused function."""
    (tmp_path / "tuned_models.py").write_text(
        "import torch\nfrom torch.nn.functional import silu\n\n\ndef target(rows=6):\n"
        "    x, y = torch.randn(2, rows, 96, dtype=torch.bfloat16)\n"
        "    return (lambda x, y: silu(x) * y), (x, y), {}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kernelweld.cli.bench._need_gpu", lambda: None)
    monkeypatch.setattr("kernelweld.cli.benching.rotations", lambda moved: 1)

    launched: list[Launch] = []

    def recorded(kernel: Kernel, tensors: Mapping[str, torch.Tensor], symbols: Mapping[str, int]) -> None:
        launched.append(kernel.launch)
        launch_direct(kernel, tensors, symbols)

    def clock(function: Callable[..., object], inputs: Sequence[Sequence[object]]) -> float:
        launched.clear()
        function(*inputs[0])
        return 2.0 if launched[-1:] == [WIDE] else 8.0

    monkeypatch.setattr("kernelweld.passes.verification.specimen.launch_direct", recorded)
    monkeypatch.setattr(Bench, "on_gpu", lambda **kinds: Bench(1.0, clock, "cpu", **kinds))
    result = CliRunner().invoke(app, ["bench", "tuned_models:target", "--rows", "6,60", "--tune", "--json"])
    assert result.exit_code == 0, result.stderr
    assert "2 of 2 launches are faster than the default" in result.stderr
    us = [run["welds"][0]["us"] for run in json.loads(result.stdout)["runs"]]
    assert us == [{"kernelweld": 8.0, "tuned": 2.0, "eager": 8.0}] * 2

    kept = read_tuning("no GPU")
    assert [(e.lowest, e.launch) for e in kept.entries] == [(4, WIDE), (32, WIDE)]
    assert {e.kernel for e in kept.entries} == {kernel_key(gated.program)}

    used: list[Launch] = []
    monkeypatch.setattr("kernelweld.passes.launcher.load", loading(used))
    x, y = torch.randn(2, 7, WIDTH, dtype=torch.bfloat16)
    for tuned, expected in ((False, choose(gated.program)), (True, WIDE)):
        torch._dynamo.reset()
        fused = kernelweld.fuse(
            lambda x, y: gate(x, y), backend="interpret", strict=True, verify=True, options={"tuned": tuned}
        )
        with torch.no_grad():
            torch.testing.assert_close(fused(x, y), gate(x, y), rtol=2**-7, atol=1e-3)
        assert used == [expected]
        assert launched[-1] == expected, "what was verified is what is launched"
        used.clear()


def loading(used: list[Launch]) -> Callable[..., object]:
    def recorded(kernel: Kernel) -> object:
        used.append(kernel.launch)
        return load(kernel)

    return recorded


def test_measured_launches_are_part_of_the_compile_key(gated: Specimen) -> None:
    entry = Entry(kernel_key(gated.program), 4, WIDE, 1.0, 2.0)
    tuning = Tuning("A").including([entry])
    keys = [KernelweldPass(tuning=t).uuid() for t in (None, Tuning("A"), tuning, replace(tuning, gpu="B"))]
    assert len(set(keys)) == 4
    assert KernelweldPass(tuning=Tuning("A").including([entry])).uuid() == keys[2]


def test_a_damaged_table_never_breaks_a_model() -> None:
    write_tuning(Tuning("no GPU")).write_text("{")
    with pytest.warns(KernelweldWarning, match="are not used: it is damaged"):
        fused = kernelweld.fuse(gate, backend="interpret", strict=True, options={"tuned": True})
    x, y = torch.randn(2, 5, WIDTH)
    with torch.no_grad(), warnings.catch_warnings():
        torch.testing.assert_close(fused(x, y), gate(x, y), rtol=1e-5, atol=1e-5)


def test_a_search_needs_kernels_that_run() -> None:
    result = CliRunner().invoke(app, ["bench", "hf:llama", "--tune", "--dry-run"])
    assert result.exit_code == 2
    assert "it does not go with --dry-run" in result.stderr
