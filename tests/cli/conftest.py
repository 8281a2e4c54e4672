"""What the tests of several verbs share: the executable in this process, and one capture of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kernelweld.cli import inspect, options
from kernelweld.cli import welded as welds
from kernelweld.cli.main import app
from kernelweld.cli.welded import Welded

MODELS = """
import torch


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def step(x, r, w, gate):
    r = r + x
    return r, norm(r, w), torch.nn.functional.silu(gate) * x


def target():
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16)
    return step, (draw(3, 96), draw(3, 96), draw(96), draw(3, 96)), {}


def no_welds():
    return torch.sin, (torch.randn(4, 8),), {}


def near_miss():
    def fn(x, y):
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
        return x * (root + 1e-6), torch.nn.functional.silu(x @ y) * x

    return fn, (torch.randn(3, 64), torch.randn(64, 64)), {}
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of targets in the current folder; its name is its own, so that no other test's is imported."""
    name = f"verb_models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return name


@pytest.fixture
def kernelweld_command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``kernelweld ARGUMENTS``, with stdout and stderr apart, as wide as in a pipe: what runs tests in
    parallel sets ``COLUMNS``.
    """
    monkeypatch.delenv("COLUMNS", raising=False)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="session")
def _qwen() -> Welded:
    """The welds of a tiny Qwen3.5 MoE, each by itself: it is captured once for all verbs."""
    pytest.importorskip("transformers")
    sizes = {"layers": None, "full": False, "batch": 1}
    target = inspect.build(
        "hf:qwen3_5_moe",
        options.Phase.prefill,
        dtype=options.Dtype.bfloat16,
        cache=options.Cache.dynamic,
        **sizes,  # type: ignore[arg-type]
    )
    return welds.welded(target, key=id)


@pytest.fixture
def qwen(_qwen: Welded, monkeypatch: pytest.MonkeyPatch) -> str:
    """The target ``hf:qwen3_5_moe``, whose capture is not repeated."""

    def captured_already(target: object, *, key: Callable[..., object], **_: object) -> Welded:
        return _qwen.grouped(key)

    monkeypatch.setattr(inspect, "build", lambda *_, **__: None)
    monkeypatch.setattr(welds, "welded", captured_already)
    monkeypatch.delenv("COLUMNS", raising=False)
    return "hf:qwen3_5_moe"
