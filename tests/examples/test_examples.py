"""Every example has a ``main`` that runs and does what it says; that for vLLM in ``test_vllm_serve.py``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def test_every_example_is_run_here() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == [
        "fuse_function",
        "fuse_model",
        "vllm_serve",
    ]


@pytest.mark.hf
def test_fuse_model(capsys: pytest.CaptureFixture[str]) -> None:
    report = load("fuse_model").main(backend="eager")
    words = {"gate_mul": 2, "residual_add": 4, "rms_norm": 9, "rope": 4, "rope_table": 1}
    assert report.graphs[0].words == words
    assert "rms_norm_rope" in capsys.readouterr().out


def test_fuse_function(capsys: pytest.CaptureFixture[str]) -> None:
    (graph,) = load("fuse_function").main().graphs
    assert graph.words == {"gate_mul": 1, "residual_add": 1, "rms_norm": 1}
    assert [weld.name for weld in graph.welds] == ["residual_add_rms_norm_gate_mul"]
    assert "predicted" in capsys.readouterr().out
