"""The Python of the environment that holds vLLM, whose pins differ from those of the tests' own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLE = "KERNELWELD_VLLM_PYTHON"

#: Small and offline, on few cores; the engine's own cache of compiled graphs is no part of a test.
_ENGINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_OF_THE_TESTS = ("KERNELWELD_OPTIONS", "KERNELWELD_PIPELINE", "KERNELWELD_DUMP", "TRITON_INTERPRET")


def engine_python() -> str:
    """Its path. Skips a test where there is none."""
    path = Path(os.environ.get(VARIABLE) or ROOT / ".venv-vllm" / "bin" / "python")
    if not path.is_file():
        pytest.skip(f"needs an environment with vLLM: {path} does not exist, see {VARIABLE}")
    return str(path)


def in_engine(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs that Python in ``folder``, with this checkout's kernelweld; asserts that it succeeds."""
    outside = {name: value for name, value in os.environ.items() if name not in _OF_THE_TESTS}
    cache = {"KERNELWELD_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [engine_python(), *arguments],
        cwd=folder,
        env={**outside, **_ENGINE, **cache, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done
