"""Near misses as people write them, planted in a copy of a model file of ``transformers``.

What means the same is still raised; for the rest ``explain --line`` names the line and the cause.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from kernelweld.cli.main import app

pytestmark = pytest.mark.hf

TARGET = """
import torch
from transformers import LlamaConfig

import {module}

SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=32)


def model():
    config = LlamaConfig(**(SIZES | {sizes} | dict(num_key_value_heads=2, num_hidden_layers=1)))
    torch.manual_seed(0)
    model = {module}.LlamaModel(config).to(torch.bfloat16).eval()
    return model, (), dict(input_ids=torch.arange(7)[None], use_cache=False)
"""

NORM = "hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)"
SQUARES = "variance = hidden_states.pow(2).mean(-1, keepdim=True)"
WEIGHT = "return self.weight * hidden_states.to(input_dtype)"
HALVES = "    x1 = x[..., : x.shape[-1] // 2]\n    x2 = x[..., x.shape[-1] // 2 :]\n"
ROTATED = "torch.cat((-x2, x1), dim=-1)"
MLP = "hidden_states = self.mlp(hidden_states)"
SUM = f"{MLP}\n        hidden_states = residual + hidden_states"
ACTIVATION = "self.act_fn(self.gate_proj(x))"


@dataclass(frozen=True)
class Plant:
    """``old`` becomes ``new``. ``line`` is text of the line asked about, ``answer`` what is said of it."""

    name: str
    old: str
    new: str
    line: str
    answer: str
    sizes: dict[str, int] = field(default_factory=dict)


SAME = (
    Plant(
        "an_extra_contiguous",
        NORM,
        NORM.replace("hidden_states * ", "hidden_states.contiguous() * "),
        "torch.rsqrt(",
        "rms_norm",
    ),
    Plant(
        "a_view_between_norm_and_projection",
        MLP,
        "hidden_states = self.mlp(hidden_states.view(-1, residual.shape[-1])).view(residual.shape)",
        "torch.rsqrt(",
        "rms_norm",
    ),
    Plant("chunk_for_split", HALVES, "    x1, x2 = x.chunk(2, dim=-1)\n", ROTATED, "rope"),
    Plant("head_dim_80", "", "", ROTATED, "rope", {"head_dim": 80}),
    Plant(
        "the_residual_added_twice",
        SUM,
        f"{SUM} + residual",
        "hidden_states = residual + hidden_states + residual",
        "residual_add",
    ),
    Plant("rotated_the_other_way", ROTATED, "torch.cat((x2, -x1), dim=-1)", "torch.cat((x2, -x1)", "rope"),
)

OTHERS = (
    Plant(
        "eps_added_after_the_root",
        "torch.rsqrt(variance + self.variance_epsilon)",
        "(torch.rsqrt(variance) + self.variance_epsilon)",
        "torch.rsqrt(",
        "no rms_norm: %N adds to the root after it is taken: eps is outside the root\n"
        "change Add eps to what is under the root, before the root is taken.",
    ),
    Plant(
        "norm_in_fp16",
        "hidden_states = hidden_states.to(torch.float32)\n",
        "hidden_states = hidden_states.to(torch.float16)\n",
        SQUARES,
        "no rms_norm: the mean is computed in float16, not in float32\n"
        "change Cast the input to float32 before, and round the result.",
    ),
    Plant(
        "weight_cast_late_to_float64",
        WEIGHT,
        "return (self.weight.double() * hidden_states).to(input_dtype)",
        "self.weight.double()",
        "ends here the weight %N is float64, at {file}:{line}",
    ),
    Plant(
        "abs_for_pow",
        SQUARES,
        SQUARES.replace("pow(2)", "abs()"),
        "abs()",
        "no rms_norm: the mean is of %N, which is no square\nchange Square the values, as x.pow(2) or x * x.",
    ),
    Plant(
        "mean_over_a_wrong_dimension",
        SQUARES,
        SQUARES.replace("mean(-1", "mean(1"),
        "mean(1",
        "no rms_norm: the mean runs over dimensions [1] of [1, 7, 64], not over the last alone\n"
        "change Reduce the last dimension alone, with dim=-1.",
    ),
    Plant(
        "a_sign_forgotten",
        ROTATED,
        "torch.cat((x2, x1), dim=-1)",
        "torch.cat((x2, x1)",
        "no rope: neither half is negated in %N\nchange Write it as `x * cos + cat((-x2, x1), -1) * sin`",
    ),
    Plant(
        "the_halves_in_place",
        ROTATED,
        "torch.cat((-x1, x2), dim=-1)",
        "torch.cat((-x1, x2)",
        "no rope: the halves %N[16:32] and %N[0:16] are not the first and second elements of pairs",
    ),
    Plant(
        "relu_for_silu",
        ACTIVATION,
        "torch.relu(self.gate_proj(x))",
        "torch.relu(",
        "no gate_mul: the activation of the gate in %N is relu\n"
        "change Write it as `act(gate) * up` with silu, sigmoid or the tanh form of gelu",
    ),
    Plant(
        "exact_gelu_for_silu",
        ACTIVATION,
        "nn.functional.gelu(self.gate_proj(x))",
        "nn.functional.gelu(",
        "no gate_mul: the activation of the gate in %N is the exact gelu",
    ),
    Plant(
        "root_rounded_early",
        NORM,
        f"{NORM}.to(input_dtype)",
        "torch.rsqrt(",
        "no rms_norm: the root %N is rounded to bfloat16 before it is used\n"
        "change Multiply by the root in float32, and round the product.",
    ),
)


#: The rest is shown every night.
SAMPLED = (
    "an_extra_contiguous",
    "the_residual_added_twice",
    "eps_added_after_the_root",
    "weight_cast_late_to_float64",
    "a_sign_forgotten",
    "relu_for_silu",
)


def sampled(plants: tuple[Plant, ...]) -> list[Any]:
    marks = {True: (), False: pytest.mark.nightly}
    return [pytest.param(one, id=one.name, marks=marks[one.name in SAMPLED]) for one in plants]


def planted(plant: Plant) -> str:
    """The model file with the plant in it, importable from anywhere."""
    import transformers

    source = Path(transformers.__file__).parent / "models" / "llama" / "modeling_llama.py"
    text = source.read_text(encoding="utf-8")
    assert plant.old in text
    text = text.replace(plant.old, plant.new) if plant.old else text
    text = re.sub(r"^from \.\.\.(?=\w)", "from transformers.", text, flags=re.MULTILINE)
    text = re.sub(r"^from \.\.\. ", "from transformers ", text, flags=re.MULTILINE)
    return re.sub(r"^from \.(?=\w)", "from transformers.models.llama.", text, flags=re.MULTILINE)


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, str, int]]:
    """Asks ``explain`` about the line of a plant: the result, the file's name and the line's number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.delenv("COLUMNS", raising=False)
    torch._dynamo.reset()

    def explain(plant: Plant, *options: str) -> tuple[Result, str, int]:
        module, text = f"modeling_{plant.name}", planted(plant)
        Path(f"{module}.py").write_text(text, encoding="utf-8")
        Path(f"target_{plant.name}.py").write_text(TARGET.format(module=module, sizes=plant.sizes))
        number = 1 + next(i for i, line in enumerate(text.splitlines()) if plant.line in line)
        place = f"{module}.py:{number}"
        result = CliRunner().invoke(app, ["explain", f"target_{plant.name}:model", "--line", place, *options])
        assert result.exit_code == 0, result.output
        sys.modules.pop(module, None)
        return result, f"{module}.py", number

    return explain


@pytest.mark.parametrize("plant", sampled(SAME))
def test_what_means_the_same_is_a_word(ask: Callable[..., tuple[Result, str, int]], plant: Plant) -> None:
    (graph,) = json.loads(ask(plant, "--json")[0].stdout)["graphs"]
    assert plant.answer in [word["kind"] for word in graph["words"]]
    assert graph["near_misses"] == []
    for word in graph["words"]:
        assert word["stopped"] is None
        assert (word["weld"] is None) != (word["left_out"] is None)
        assert word["left_out"] is None or word["left_out"]["rule"] == "cost"


@pytest.mark.parametrize("plant", sampled(OTHERS))
def test_what_does_not_has_its_cause_named(ask: Callable[..., tuple[Result, str, int]], plant: Plant) -> None:
    result, file, line = ask(plant)
    text = re.sub(r"%\w+", "%N", "\n".join(" ".join(part.split()) for part in result.stdout.splitlines()))
    assert f"graph 1, {file}:{line}\n" in text
    assert plant.answer.format(file=file, line=line) in text
    assert f" at {file}:{line}" in text
    assert re.findall(r"^\d+ × ", text, re.MULTILINE)
