"""The example for vLLM in a real engine, and what that vLLM reads of the configuration that we print for it.

One process for both: to import vLLM takes as long as to serve a tiny model.
"""

from __future__ import annotations

import json
import re

import pytest
from engine_python import ROOT, in_engine
from typer.testing import CliRunner

from kernelweld.cli.main import app

PROGRAM = """
import json, sys

sys.path.insert(0, sys.argv[1])
import vllm_serve  # as a script it does the same

vllm_serve.main()

from vllm.config import CompilationConfig
from vllm.config import vllm as configured
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from kernelweld.integrations.vllm.uncompiled import uncompiled

KEY = "post_grad_custom_post_pass"


def parsed(*arguments):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    return parser.parse_args(arguments).compilation_config


made = CompilationConfig(**json.loads(sys.argv[2]))
pasted = parsed("--compilation-config", sys.argv[2])
flag = parsed(f"-cc.inductor_passes.{KEY}=kernelweld.vllm_pass")
three = (made, pasted, flag)
names = getattr(configured, "DEFAULT_BREAKABLE_CUDAGRAPH_ARCHITECTURES", ())
read = {
    "passes": [type(one.inductor_compile_config[KEY]).__name__ for one in three],
    "fusions": [[one.pass_config.fuse_norm_quant, one.pass_config.fuse_act_quant] for one in three],
    "left": [made.mode, made.splitting_ops, made.pass_config.fuse_allreduce_rms, made.custom_ops],
    "not known": [name for name in names if uncompiled([name]) is None],
}
print("read:", json.dumps(read))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the example prints, and then what vLLM reads."""
    folder = tmp_path_factory.mktemp("vllm_serve")
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"architectures": ["Qwen3ForCausalLM"], "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "program.py").write_text(PROGRAM)
    printed = CliRunner().invoke(app, ["vllm-config", str(folder), "--vllm", "0.32"]).stdout
    return in_engine(["program.py", str(ROOT / "examples"), printed.strip()], folder).stdout


def line(said: str, name: str) -> str:
    (found,) = [text for text in said.splitlines() if text.startswith(f"{name}: ")]
    return found.removeprefix(f"{name}: ")


@pytest.mark.slow
def test_the_example_generates_and_tells_what_was_welded(said: str) -> None:
    assert len(json.loads(line(said, "generated"))) == 16
    welded = line(said, "kernelweld")
    assert re.match(r"active: [1-9]\d* welds in 1 graph ", welded), welded
    assert "9 rms_norm" in welded and "4 rope" in welded


@pytest.mark.slow
def test_vllm_reads_the_configuration_that_is_printed(said: str) -> None:
    read = json.loads(line(said, "read"))
    assert read["passes"] == ["VllmPass", "VllmPass", "VllmPass"]
    assert read["fusions"] == [[False, False], [False, False], [None, None]]
    assert read["left"] == [None, None, None, []]


@pytest.mark.slow
def test_models_that_vllm_does_not_compile_are_known(said: str) -> None:
    assert json.loads(line(said, "read"))["not known"] == []
