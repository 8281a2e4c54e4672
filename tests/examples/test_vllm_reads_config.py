"""The printed configuration and the list of models that are not compiled, beside a real vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_python import in_engine
from typer.testing import CliRunner

from kernelweld.cli.main import app

PROGRAM = """
import json, sys
from vllm.config import CompilationConfig
from vllm.config import vllm as configured
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from kernelweld.integrations.vllm.uncompiled import uncompiled

KEY = "post_grad_custom_post_pass"

def read(arguments):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    return parser.parse_args(arguments).compilation_config

whole = CompilationConfig(**json.loads(sys.argv[1]))
pasted = read(["--compilation-config", sys.argv[1]])
flag = read([f"-cc.inductor_passes.{KEY}=kernelweld.vllm_pass"])
read_ones = (whole, pasted, flag)
names = getattr(configured, "DEFAULT_BREAKABLE_CUDAGRAPH_ARCHITECTURES", ())
print("FOUND", json.dumps({
    "passes": [type(one.inductor_compile_config[KEY]).__name__ for one in read_ones],
    "fusions": [[one.pass_config.fuse_norm_quant, one.pass_config.fuse_act_quant] for one in read_ones],
    "left": [whole.mode, whole.splitting_ops, whole.pass_config.fuse_allreduce_rms, whole.custom_ops],
    "unknown": [name for name in names if uncompiled([name]) is None],
}))
"""


@pytest.mark.slow
def test_vllm_reads_what_is_printed(tmp_path: Path) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"architectures": ["Qwen3ForCausalLM"], "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    printed = CliRunner().invoke(app, ["vllm-config", str(tmp_path), "--vllm", "0.32"]).stdout
    (tmp_path / "program.py").write_text(PROGRAM)
    done = in_engine(["program.py", printed.strip()], tmp_path)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found["passes"] == ["VllmPass", "VllmPass", "VllmPass"]
    assert found["fusions"] == [[False, False], [False, False], [None, None]]
    assert found["left"] == [None, None, None, []]
    assert found["unknown"] == [], (
        "vLLM compiles fewer models than kernelweld.integrations.vllm.uncompiled says"
    )
