"""``models:`` targets: a model as served, and the launches of its attention."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernelweld.cli.main import app

ROOT = Path(__file__).parents[2]


@cache
def path_of(target: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["inspect", target, "--phase", "decode", "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)["attention_path"]
    return found


def test_attention_of_one_token_is_ten_launches() -> None:
    path = path_of("models:deepseek_v32")
    assert path["layer"] == "model.layers.1"
    assert path["launches"]["unfused"] >= 100
    assert path["launches"]["before"] >= 24
    assert path["launches"]["after"] <= 10
    for row in ("unfused", "before", "after"):
        assert len(path[row]) == path["launches"][row]
        assert all("kernelweld/models/" in launch["source"] for launch in path[row])


def test_the_packs_are_a_launch_each() -> None:
    welds = [launch["kernel"] for launch in path_of("models:deepseek_v32")["after"]]
    latents = "rms_norm__layer_norm_rope_quant_scale_quant_cache_write__rms_norm_rope_cache_write"
    assert welds.count(latents) == 1
    assert welds.count("matvec__rope__rope_quant_scale_quant") == 1


@pytest.mark.nightly
def test_real_dimensions_in_fp8() -> None:
    arguments = ["inspect", "models:deepseek_v32_fp8", "--phase", "decode", "--full", "--json"]
    done = CliRunner().invoke(app, arguments)
    counts = json.loads(done.stdout)["attention_path"]["launches"]
    assert counts["after"] <= 15 < counts["before"]


def test_the_page_is_written_from_the_command_line_and_the_results() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import deepseek_page
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    text = deepseek_page.PAGE.read_text()
    assert deepseek_page.page(text, path_of("models:deepseek_v32")) == text
