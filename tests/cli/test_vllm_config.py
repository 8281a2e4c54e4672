"""``kernelweld vllm-config``: the configuration, its reasons, and models that vLLM does not compile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import Result

from kernelweld.cli.vllm_config import as_dict
from kernelweld.integrations.vllm.recommended import Recommendation, Serving, in_blocks, recommended
from kernelweld.integrations.vllm.uncompiled import uncompiled

Command = Callable[..., Result]

PASS = {"inductor_passes": {"post_grad_custom_post_pass": "kernelweld.vllm_pass"}}
APART = {"pass_config": {"fuse_norm_quant": False, "fuse_act_quant": False}}

FP8_IN_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FP8_A_TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}
COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {}}}}
COMPRESSED_IN_BLOCKS = {**COMPRESSED, "config_groups": {"group_0": {"weights": {"strategy": "block"}}}}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is that of the test, whatever is installed."""
    monkeypatch.setattr("kernelweld.integrations.vllm.versions.installed", lambda: None)
    monkeypatch.setattr("kernelweld.integrations.vllm.versions.is_for_cpus", lambda: False)
    monkeypatch.delenv("KERNELWELD_OPTIONS", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


def model(**more: object) -> dict[str, object]:
    return {"architectures": ["Qwen3ForCausalLM"], **more}


def folder(path: Path, config: Mapping[str, object]) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def reasons(found: Recommendation) -> Mapping[str, str]:
    return {one.name: one.reason for one in found.fields}


def test_stdout_is_the_config_alone_and_stderr_has_the_reasons(
    kernelweld_command: Command, tmp_path: Path
) -> None:
    done = kernelweld_command("vllm-config", folder(tmp_path, model(quantization_config=FP8_IN_BLOCKS)))
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {**PASS, **APART}
    assert len(done.stdout.splitlines()) == 1
    for name in ("post_grad_custom_post_pass", "pass_config.fuse_norm_quant", "pass_config.fuse_act_quant"):
        assert name in done.stderr
    assert "custom_ops" not in done.stderr, "what is left to vLLM is told on demand"


def test_all_tells_of_every_field_and_sets_no_more(kernelweld_command: Command, tmp_path: Path) -> None:
    done = kernelweld_command("vllm-config", folder(tmp_path, model()), "--tp", "4", "--all", "--json")
    found = json.loads(done.stdout)
    assert found["config"] == PASS
    left = {one["field"]: one["reason"] for one in found["reasons"] if one["value"] is None}
    assert {"mode", "custom_ops", "splitting_ops", "cudagraph_mode"} <= set(left)
    assert left["pass_config.fuse_allreduce_rms"].startswith("leave it on")
    assert found["environment"] == {} and found["inactive"] is None
    assert found["warnings"] == ["vLLM is not installed here: this is for releases 0.26 to 0.33"]


@pytest.mark.parametrize(
    ("quantization", "apart"),
    [
        (None, False),
        (FP8_IN_BLOCKS, True),
        (FP8_A_TENSOR, False),
        (COMPRESSED, False),
        (COMPRESSED_IN_BLOCKS, True),
        (NVFP4, False),
    ],
    ids=["bf16", "fp8 blocks", "fp8 tensor", "compressed", "compressed blocks", "nvfp4"],
)
def test_fusions_with_codes_are_off_for_weights_in_blocks(
    quantization: dict[str, object] | None, apart: bool
) -> None:
    config = model() if quantization is None else model(quantization_config=quantization)
    assert recommended(config, Serving()).config == ({**PASS, **APART} if apart else PASS)
    inside = {"architectures": ["X"], "text_config": config}
    assert recommended(inside, Serving()).config == recommended(config, Serving()).config
    assert recommended(config, Serving(device="cpu")).config == PASS


def test_the_gate_of_nvfp4_is_best_left_to_vllm() -> None:
    found = recommended(model(quantization_config=NVFP4), Serving())
    assert "best so" in reasons(found)["pass_config.fuse_act_quant"]
    assert "best so" not in reasons(recommended(model(), Serving()))["pass_config.fuse_act_quant"]


def test_odd_configurations_are_read() -> None:
    assert not in_blocks({"weight_block_size": None, "config_groups": [1], "quant_method": 3})
    found = recommended({"architectures": "Qwen3ForCausalLM", "quantization_config": "fp8"}, Serving())
    assert found.config == PASS
    assert "names no architectures" in found.warnings[0]


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_model_that_is_not_compiled(kernelweld_command: Command, options: tuple[str, ...]) -> None:
    done = kernelweld_command("vllm-config", "DeepseekV32ForCausalLM", *options)
    assert done.exit_code == 1
    said = done.stderr if not options else json.loads(done.stdout)["inactive"]
    assert "vLLM does not compile DeepseekV32ForCausalLM in releases after 0.26" in said
    assert "VLLM_USE_BREAKABLE_CUDAGRAPH=0 does not change that" in said
    assert done.stdout == "" if not options else json.loads(done.stdout)["config"] == {}


def test_the_same_model_in_the_release_that_compiles_it(kernelweld_command: Command) -> None:
    done = kernelweld_command("vllm-config", "DeepseekV32ForCausalLM", "--vllm", "0.26.1")
    assert (done.exit_code, json.loads(done.stdout)) == (0, PASS)


def test_the_variable_is_told_where_it_helps(kernelweld_command: Command) -> None:
    done = kernelweld_command("vllm-config", "DeepseekV32ForCausalLM", "--vllm", "0.32", "--device", "cpu")
    assert (done.exit_code, json.loads(done.stdout)) == (0, PASS)
    assert "set VLLM_USE_BREAKABLE_CUDAGRAPH=0 in the environment of vLLM" in done.stderr
    assert "on a CPU no kernels run" in done.stderr


def test_models_that_are_compiled_are_not_taken_for_others() -> None:
    names = [
        "Qwen3ForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "MiniMaxM2ForCausalLM",
        "DeepseekV3ForCausalLM",
    ]
    assert [name for name in names if uncompiled([name])] == []
    assert uncompiled(["DeepseekV4ForCausalLM"], (0, 26)) is not None
    assert uncompiled(["DeepseekV4ForCausalLM"], (0, 26), "cpu") == uncompiled(
        ["DeepseekV4ForCausalLM"], (0, 26)
    )


@pytest.mark.parametrize("version", ["0.25.3", "0.34.0"])
def test_a_release_that_is_not_supported(
    kernelweld_command: Command, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    done = kernelweld_command("vllm-config", "Qwen3ForCausalLM", "--vllm", version)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"kernelweld would be inactive: vLLM {version} is" in done.stderr
    monkeypatch.setenv("KERNELWELD_OPTIONS", '{"untested_vllm": true}')
    insisting = kernelweld_command("vllm-config", "Qwen3ForCausalLM", "--vllm", version)
    assert (insisting.exit_code, json.loads(insisting.stdout)) == (0, PASS)


def test_a_name_of_transformers(kernelweld_command: Command) -> None:
    done = kernelweld_command("vllm-config", "hf:deepseek_v32", "--vllm", "0.33")
    assert done.exit_code == 1
    assert "DeepseekV32ForCausalLM" in done.stderr


def test_a_model_that_was_downloaded(
    kernelweld_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder(tmp_path, model(quantization_config=FP8_IN_BLOCKS))
    there = {"Qwen/Qwen3-8B-FP8": str(tmp_path / "config.json")}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: there.get(name))
    done = kernelweld_command("vllm-config", "Qwen/Qwen3-8B-FP8")
    assert json.loads(done.stdout) == {**PASS, **APART}
    missing = kernelweld_command("vllm-config", "Qwen/Qwen3-8B")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "not among the models that were downloaded" in missing.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read: No such file"), ("{", "is no JSON"), ("[]", "holds no object")],
    ids=["absent", "broken", "list"],
)
def test_folders_that_cannot_be_read(
    kernelweld_command: Command, tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    done = kernelweld_command("vllm-config", str(tmp_path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr


def test_a_name_that_is_none(kernelweld_command: Command) -> None:
    done = kernelweld_command("vllm-config", "hf:quen3")
    assert done.exit_code == 2
    assert "did you mean 'hf:qwen3'" in done.stderr


def test_what_json_holds() -> None:
    found = recommended(model(), Serving("0.32", "cpu"))
    assert list(as_dict(found, ())) == ["config", "reasons", "environment", "warnings", "inactive"]


def test_vllm_for_cpus_is_asked_what_it_runs_on(
    kernelweld_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSeek-V3.2 is compiled there, and not on CUDA."""
    monkeypatch.setattr("kernelweld.integrations.vllm.versions.is_for_cpus", lambda: True)
    assert kernelweld_command("vllm-config", "DeepseekV32ForCausalLM").exit_code == 0
    assert kernelweld_command("vllm-config", "DeepseekV32ForCausalLM", "--device", "cuda").exit_code == 1


@pytest.mark.parametrize("model", ["/nope", "./nope", "../nope"])
def test_a_folder_that_does_not_exist(kernelweld_command: Command, model: str) -> None:
    done = kernelweld_command("vllm-config", model)
    assert done.exit_code == 2
    assert "there is no such folder" in done.stderr


def test_the_file_itself_will_do(kernelweld_command: Command, tmp_path: Path) -> None:
    done = kernelweld_command("vllm-config", f"{folder(tmp_path, model())}/config.json")
    assert done.exit_code == 0 and json.loads(done.stdout) == PASS


def test_a_version_that_is_none(kernelweld_command: Command) -> None:
    done = kernelweld_command("vllm-config", "Qwen3ForCausalLM", "--vllm", "banana")
    assert done.exit_code == 2
    assert "a version such as 0.32.0" in done.stderr
