"""Inductor's own reading of the kernels: exactly the inputs are read and exactly the outputs written.

What it cannot tell it assumes to be mutated, and clones. Its analysis compiles to Triton's IR, so it runs in
a second process that does not interpret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch._higher_order_ops.triton_kernel_wrap as wrap

from kernelweld.codegen.cache import write
from kernelweld.codegen.emit import Kernel

KERNELS = ("add_rms_norm", "head_norm_rope", "decode_pack", "layer_norm", "swiglu", "mrope")

SCRIPT = """
import importlib.util, json, sys, torch, triton
from triton.backends.compiler import GPUTarget
from torch._higher_order_ops.triton_kernel_wrap import identify_accessed_tensors

class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

triton.runtime.driver.set_active(Driver())
found = {}
for name, path, tensors, symbols in json.load(sys.stdin):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = {n: torch.empty(64, dtype=getattr(torch, d)) for n, d in tensors} | dict.fromkeys(symbols, 7)
    uses = identify_accessed_tensors(getattr(module, name), arguments, {}).read_writes
    found[name] = [[dep.name for dep in deps] for deps in (uses.reads, uses.writes)]
print(json.dumps(found))
"""


def described(kernel: Kernel) -> tuple[object, ...]:
    dtypes = [str(dtype).removeprefix("torch.") for dtype in kernel.dtypes]
    return kernel.name, str(write(kernel)), list(zip(kernel.tensors, dtypes, strict=True)), kernel.symbols


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(wrap, "identify_accessed_tensors"), reason="this torch tells no reads")
def test_inputs_are_read_and_outputs_written(catalogue: Callable[[str], Kernel], tmp_path: Path) -> None:
    kernels = [catalogue(name) for name in KERNELS]
    (tmp_path / "analyse.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "analyse.py")],
        input=json.dumps([described(kernel) for kernel in kernels]),
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for kernel in kernels:
        reads, writes = found[kernel.name]
        assert set(writes) == set(kernel.outputs)
        assert set(reads) == set(kernel.tensors) - set(kernel.outputs)
