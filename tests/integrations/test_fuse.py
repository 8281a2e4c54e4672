"""``fuse`` as users meet it: what it returns, what it refuses, and that a failure of ours never breaks
their model.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelweld
from kernelweld.errors import (
    BadOption,
    BadPipeline,
    GraphBreak,
    KernelweldWarning,
    NotAModule,
    NotFused,
    NotInterpreting,
    TrainingMode,
    UnknownName,
)
from kernelweld.passes.canonicalize.canonicalize_pass import CanonicalizePass


class Block(nn.Module):
    """Residual add, RMSNorm, gate: three words in one small module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.rand(32))
        self.up = nn.Linear(32, 48, bias=False)
        self.gate = nn.Linear(32, 48, bias=False)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        h = x + residual
        n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return nn.functional.silu(self.gate(n)) * self.up(n)


def inputs(rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, 32), torch.randn(rows, 32)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "interpret"])
def test_a_module_is_fused_in_place(backend: str) -> None:
    block = Block()
    with torch.no_grad():
        expected = block(*inputs())
        fused = kernelweld.fuse(block, backend=backend, strict=True)
        assert fused is block
        torch.testing.assert_close(fused(*inputs()), expected, rtol=1e-5, atol=1e-6)
    (graph,) = kernelweld.report(fused).graphs
    assert graph.words == {"gate_mul": 1, "residual_add": 1, "rms_norm": 1}
    assert [weld.name for weld in graph.welds] == ["residual_add_rms_norm", "gate_mul"]
    assert all("test_fuse.py" in source for weld in graph.welds for source in weld.sources)
    assert graph.launches.after <= graph.launches.before


@pytest.mark.parametrize("backend", ["eager", "interpret"])
def test_rows_quantized_by_their_own_scales(backend: str) -> None:
    """Bounds of scales decide how quotients are taken: numbers that are computed while a graph compiles."""

    def quantized(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
        scale = h.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
        return (h / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale

    fused = kernelweld.fuse(quantized, backend=backend, strict=True)
    with torch.no_grad():
        codes, scale = fused(inputs()[0], torch.ones(32))
        expected = quantized(inputs()[0], torch.ones(32))
    torch.testing.assert_close(scale, expected[1])
    assert torch.equal(codes.view(torch.uint8), expected[0].view(torch.uint8))
    (graph,) = kernelweld.report(fused).graphs
    assert graph.words == {"quant": 1, "quant_scale": 1, "rms_norm": 1}


def test_inductor_compiles_the_references_on_cpu() -> None:
    block = Block()
    with torch.no_grad():
        expected = block(*inputs())
        torch.testing.assert_close(
            kernelweld.fuse(block, strict=True)(*inputs()), expected, rtol=1e-5, atol=1e-6
        )


def test_a_function_and_a_decorated_method() -> None:
    @kernelweld.fuse(backend="eager", strict=True)
    def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The docstring survives."""
        return nn.functional.silu(gate) * up

    class Decorated(nn.Module):
        @kernelweld.fuse(backend="eager", strict=True)
        def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
            return nn.functional.silu(x) * residual

    x, y = inputs()
    expected = nn.functional.silu(x) * y
    assert torch.allclose(swiglu(x, y), expected)
    assert torch.allclose(Decorated()(x, y), expected)
    assert swiglu.__doc__ == "The docstring survives."
    assert kernelweld.report(swiglu).graphs[0].words == {"gate_mul": 1}
    assert kernelweld.report(Decorated.forward).graphs[0].words == {"gate_mul": 1}


def test_verify_checks_every_weld() -> None:
    block = kernelweld.fuse(Block(), backend="interpret", verify=True, strict=True)
    with torch.no_grad():
        block(*inputs())
    (graph,) = kernelweld.report(block).graphs
    assert "verify-welds" in " ".join(graph.seconds)
    assert len(graph.welds) == 2


def test_explain_prints_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.no_grad():
        kernelweld.fuse(Block(), backend="eager", explain=True)(*inputs())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "residual_add_rms_norm" in captured.err


@pytest.mark.parametrize("dynamic", [True, None])
def test_one_compilation_serves_many_batches(dynamic: bool | None) -> None:
    block = Block()
    plain = copy.deepcopy(block)
    fused = kernelweld.fuse(block, backend="interpret", dynamic=dynamic, strict=True)
    with torch.no_grad():
        for rows in (4, 7, 256, 1, 33):
            torch.testing.assert_close(fused(*inputs(rows)), plain(*inputs(rows)), rtol=1e-5, atol=1e-6)
    # Dynamo specialises sizes 0 and 1 under dynamic=None, and learns that rows vary at the second call.
    assert len(kernelweld.report(fused).graphs) <= (1 if dynamic else 3)


BROADCASTS = {
    "a column": (lambda x, s: nn.functional.silu(x) * s, ((4, 8), (4, 1))),
    "a batch of one": (lambda x, p: x + p, ((3, 5, 8), (1, 5, 8))),
    "heads of one": (lambda q, c: q * c, ((2, 4, 5, 8), (2, 1, 5, 8))),
    "a mask": (lambda s, m: (s + m).softmax(-1), ((2, 4, 5, 5), (1, 1, 5, 5))),
}


@pytest.mark.parametrize("case", BROADCASTS)
def test_dynamic_shapes_leave_broadcasts_alone(case: str) -> None:
    function, shapes = BROADCASTS[case]
    fused = kernelweld.fuse(function, dynamic=True, backend="eager", strict=True)
    given = [torch.randn(shape) for shape in shapes]
    with torch.no_grad():
        torch.testing.assert_close(fused(*given), function(*given))


def test_a_broadcast_may_come_after_other_shapes() -> None:
    function = BROADCASTS["a column"][0]
    fused = kernelweld.fuse(function, dynamic=True, backend="eager", strict=True)
    with torch.no_grad():
        for shapes in (((3, 8), (3, 8)), ((3, 8), (3, 1)), ((5, 8), (5, 1))):
            given = [torch.randn(shape) for shape in shapes]
            torch.testing.assert_close(fused(*given), function(*given))


def test_inside_another_compilation_the_model_is_taken_as_it_is() -> None:
    block = Block()
    with torch.no_grad():
        expected = block(*inputs())
        outer = torch.compile(kernelweld.fuse(block, backend="eager"), backend="aot_eager")
        torch.testing.assert_close(outer(*inputs()), expected)


class Decorated(Block):
    @kernelweld.fuse(backend="eager", strict=True)
    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return super().forward(x, residual)


def closed_over() -> object:
    weight = torch.ones(32, requires_grad=True)
    fused = kernelweld.fuse(lambda x: x * weight, backend="eager", strict=True)
    return fused(torch.ones(2, 32))


NEEDING_GRADIENTS = {
    "a keyword": lambda: kernelweld.fuse(lambda x: x * 2, backend="eager", strict=True)(
        x=torch.ones(2, requires_grad=True)
    ),
    "a nested tensor": lambda: kernelweld.fuse(lambda d: d["x"][0] * 2, backend="eager", strict=True)(
        {"x": [torch.ones(2, requires_grad=True)]}
    ),
    "a decorated forward": lambda: Decorated()(*inputs()),
    "a closure": closed_over,
}


class TestBadInput:
    @pytest.mark.parametrize("case", NEEDING_GRADIENTS)
    def test_gradients_are_seen_wherever_they_come_from(self, case: str) -> None:
        with pytest.raises(TrainingMode):
            NEEDING_GRADIENTS[case]()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"options": {"pipeline": 3}}, "option 'pipeline' cannot be 3"),
            ({"options": {"merge_gemms": "no"}}, "option 'merge_gemms' cannot be 'no'"),
            ({"options": ["a"]}, "option 'options' cannot be"),
            ({"dynamic": "yes"}, "option 'dynamic' cannot be 'yes'"),
        ],
    )
    def test_options_of_the_wrong_type(self, arguments: dict[str, object], text: str) -> None:
        with pytest.raises(BadOption, match=text):
            kernelweld.fuse(Block(), **arguments)  # type: ignore[call-overload]

    def test_not_a_model(self) -> None:
        with pytest.raises(NotAModule, match=r"takes an nn\.Module or a function, not 'int'"):
            kernelweld.fuse(3)  # type: ignore[type-var]

    def test_report_of_something_unfused(self) -> None:
        with pytest.raises(NotFused, match="this Block was not fused"):
            kernelweld.report(Block())

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"backend": "interprt"}, "did you mean 'interpret'"),
            ({"mode": "reduce-overheads"}, "did you mean 'reduce-overhead'"),
            ({"options": {"pipelin": "raise"}}, "did you mean 'pipeline'"),
            ({"options": {"max_autotun": True}}, "did you mean 'max_autotune'"),
            ({"options": {"pipeline": "canonicalise,raise"}}, "did you mean 'canonicalize'"),
        ],
    )
    def test_unknown_names_have_close_matches(self, arguments: dict[str, object], text: str) -> None:
        with pytest.raises(UnknownName, match=text):
            kernelweld.fuse(Block(), **arguments)  # type: ignore[arg-type]

    def test_a_pipeline_that_does_not_parse(self) -> None:
        with pytest.raises(BadPipeline):
            kernelweld.fuse(Block(), options={"pipeline": "raise,,plan"})

    def test_gradients_run_the_untouched_model_with_one_warning(self) -> None:
        block = kernelweld.fuse(Block(), backend="eager")

        def train() -> None:
            for _ in range(2):
                block(*inputs()).sum().backward()

        with pytest.warns(KernelweldWarning, match="no backward") as caught:
            train()
        assert sum(issubclass(w.category, KernelweldWarning) for w in caught) == 1
        assert block.weight.grad is not None
        assert kernelweld.report(block).graphs == ()

    def test_gradients_raise_if_strict(self) -> None:
        with pytest.raises(TrainingMode):
            kernelweld.fuse(Block(), backend="eager", strict=True)(*inputs())

    def test_a_graph_break_is_named_once(self) -> None:
        def broken(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            h = nn.functional.silu(x) * y
            torch._dynamo.graph_break()
            return nn.functional.silu(h) * y

        x, y = inputs()
        with torch.no_grad():
            expected = broken(x, y)
            with pytest.warns(KernelweldWarning, match="graph break"):
                assert torch.allclose(kernelweld.fuse(broken, backend="eager")(x, y), expected)
            torch._dynamo.reset()
            with pytest.raises(GraphBreak):
                kernelweld.fuse(broken, backend="eager", strict=True)(x, y)

    def test_a_failing_pass_leaves_the_model_running(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def explode(*_: object) -> None:
            raise ValueError("planted")

        monkeypatch.setattr(CanonicalizePass, "run", explode)
        block = Block()
        with torch.no_grad():
            expected = block(*inputs())
            with pytest.warns(KernelweldWarning, match="pass 'canonicalize' failed: ValueError: planted"):
                assert torch.allclose(kernelweld.fuse(block, backend="eager")(*inputs()), expected, atol=1e-6)

    def test_float64_is_left_as_it_was(self) -> None:
        block = Block().double()
        x, y = (t.double() for t in inputs())
        with torch.no_grad():
            expected = block(x, y)
            assert torch.allclose(kernelweld.fuse(block, backend="eager", strict=True)(x, y), expected)
        (graph,) = kernelweld.report(block).graphs
        assert graph.welds == ()


SECOND_PROCESS = """
import sys, torch
sys.path.insert(0, {tests!r})
import kernelweld
from test_fuse import Block, inputs
block = kernelweld.fuse(Block(), strict=True)
with torch.no_grad():
    out = block(*inputs())
print(kernelweld.report(block).to_json())
print(out.double().sum().item(), file=sys.stderr)
from torch._dynamo.utils import counters
print(counters["aot_autograd"]["autograd_cache_hit"], file=sys.stderr)
"""


def test_a_second_process_hits_the_cache_with_the_same_report(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "KERNELWELD_CACHE_DIR": str(tmp_path / "kernelweld"),
    }
    script = SECOND_PROCESS.format(tests=str(Path(__file__).parent))
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[-1].stderr
    first, second = (json.loads(run.stdout) for run in runs)
    assert first == second
    assert first["graphs"][0]["welds"]
    sums = [run.stderr.splitlines()[-2:] for run in runs]
    assert sums[0][0] == sums[1][0]
    assert (sums[0][1], sums[1][1]) == ("0", "1"), "the second process must be a cache hit"


def test_warnings_are_not_errors_in_disguise() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", KernelweldWarning)
        kernelweld.fuse(Block(), backend="eager")(*inputs())


def test_verification_says_what_it_needs_where_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is compiled without a GPU; with one, of a model on the CPU, in the pass."""
    monkeypatch.setattr("kernelweld.integrations.fuse.interpreting", lambda: False)
    monkeypatch.setattr("kernelweld.passes.verify_welds.interpreting", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(NotInterpreting, match=r"verify=True without a GPU needs.*\n.*TRITON_INTERPRET=1"):
        kernelweld.fuse(Block(), verify=True)
    with monkeypatch.context() as gpu:
        gpu.setattr("torch.cuda.is_available", lambda: True)
        fused = kernelweld.fuse(Block(), backend="eager", verify=True)
    with pytest.warns(KernelweldWarning, match="verify-welds on a CPU needs"), torch.no_grad():
        fused(*inputs())


def test_artefacts_of_compiled_and_interpreted_kernels_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelweld.integrations import hook

    found = set()
    for interprets in (True, False):
        monkeypatch.setattr(hook, "interpreting", lambda interprets=interprets: interprets)
        found.add(hook.environment.__wrapped__())
    assert len(found) == 2
