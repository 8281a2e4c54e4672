"""The program of docs/deepseek-v32.md, on the CPU with a tiny random checkpoint."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "tests" / "models")])
    from serving import TINY

    torch._dynamo.reset()
    folder = tmp_path / "path" / "to" / "checkpoint"
    torch.manual_seed(0)
    transformers.DeepseekV32ForCausalLM(transformers.DeepseekV32Config(**TINY)).save_pretrained(folder)
    text = (ROOT / "docs" / "deepseek-v32.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    on_cpu = program.replace('device="cuda"', 'device="cpu"').replace('mode="reduce-overhead"', "strict=True")
    exec(on_cpu, names)
    token = names["token"]
    assert isinstance(token, torch.Tensor)
    assert 0 <= int(token) < TINY["vocab_size"]
