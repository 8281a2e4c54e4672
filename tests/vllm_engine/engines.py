"""Runs engines of vLLM, each in a process of its own, and writes what was seen: in an environment with vLLM.

    python engines.py FOLDER < runs.json

A run is a JSON object: ``name``, ``model`` (a key of ``checkpoints.MODELS``), ``env``, ``llm`` (arguments of
``LLM``) and ``keep_mode`` (below). ``FOLDER/NAME.json`` is what came of it, ``FOLDER/NAME.log`` what the
process wrote. vLLM is imported once, and a process forks for each run before any engine exists: what
engines have in common, imports and headers that every kernel includes, is half of a start.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PROMPTS, TOKENS = 16, 32


def main(folder: Path) -> None:
    os.environ.update(environment(folder))
    runs = json.load(sys.stdin)
    from checkpoints import checkpoint

    load_vllm()
    models = {run["model"]: checkpoint(run["model"], folder / "checkpoints") for run in runs}
    register(models.values())
    print(f"imports: {time.process_time():.1f} s", file=sys.stderr)
    for run in runs:
        seconds = in_a_fork(lambda run=run: engine(models[run["model"]], run), folder / run["name"], run)
        print(f"{run['name']}: {seconds:.1f} s", file=sys.stderr)


def environment(folder: Path) -> dict[str, str]:
    """Engines in this process, one core, nothing from outside, every cache in ``folder``."""
    return {
        "HF_HUB_OFFLINE": "1",
        "KERNELWELD_CACHE_DIR": str(folder / "kernelweld-cache"),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor-cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


def load_vllm() -> None:
    """What engines import, whatever their configuration; a compilation, which imports and builds the rest."""
    import torch
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401

    import kernelweld.integrations.vllm.outcome  # noqa: F401

    with torch.no_grad():
        torch.compile(lambda x: (x.float().sin() + 1).sum(-1), dynamic=True)(torch.ones(3, 64).bfloat16())


def register(models: Any) -> None:
    """Has their classes at hand, which vLLM would import in a process of its own to ask what they can."""
    from vllm import ModelRegistry

    for model in models:
        (name,) = json.loads((model / "config.json").read_text())["architectures"]
        for one in (name, "TransformersForCausalLM"):
            ModelRegistry.register_model(one, ModelRegistry.models[one].load_model_cls())


def in_a_fork(action: Callable[[], object], place: Path, run: Mapping[str, Any]) -> float:
    """Runs in a child, with its output in ``place.log`` and its result, or its error, in ``place.json``.

    Returns the seconds of a core that it took.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        used = os.wait4(child, 0)[2]
        return used.ru_utime + used.ru_stime
    os.environ.update(run.get("env", {}))
    with place.with_suffix(".log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        result = action()
    except BaseException as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    place.with_suffix(".json").write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def engine(model: Path, run: Mapping[str, Any]) -> dict[str, object]:
    """Starts it, lets it write, and looks inside."""
    from vllm import LLM, SamplingParams

    if run.get("keep_mode"):
        keep_mode()
    llm = LLM(
        str(model),
        skip_tokenizer_init=True,
        max_model_len=128,
        max_num_seqs=PROMPTS,
        max_num_batched_tokens=512,
        kv_cache_memory_bytes=1 << 26,
        **{"dtype": "bfloat16", **run.get("llm", {})},
    )
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0, detokenize=False, ignore_eos=True)
    written = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], greedy, use_tqdm=False)
    seen = {} if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1" else inside(llm)
    return {"tokens": [list(one.outputs[0].token_ids) for one in written], **seen}


def keep_mode() -> None:
    """Leaves compilation in vLLM's own mode, which its CPU platform replaces to save time in vLLM's tests.

    Then graphs come in pieces and ranges, behind vLLM's passes, and vLLM keeps artefacts: as on a GPU.
    """
    from vllm.platforms.cpu import CpuPlatform

    made = CpuPlatform.check_and_update_config

    def check_and_update_config(config: Any) -> None:
        mode = config.compilation_config.mode
        made(config)
        config.compilation_config.mode = mode
        config.compilation_config.compile_sizes = []

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)


def prompts() -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(2, 500) for _ in range(5 + length)] for length in range(PROMPTS)]


def inside(llm: Any) -> dict[str, object]:
    """What its modules should make of graphs, and what its one process says that it did."""
    from module_tree import expected_words
    from vllm.compilation.counter import compilation_counter

    from kernelweld.integrations.vllm.statistics import STATISTICS

    return {
        "expected": llm.apply_model(expected_words)[0],
        "pieces": json.loads(STATISTICS.to_json())["pieces"],
        "loaded": compilation_counter.num_aot_artifacts_loaded,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
