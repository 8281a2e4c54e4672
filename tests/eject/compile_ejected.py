"""Compiles the kernel of each file in a folder for GPUs that need not be there: `compile_ejected.py DIR`.

Prints ``FILE TARGET REGISTERS STACK`` for each. A process of its own: it must not interpret kernels.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from kernelweld.codegen.crosscompile import gpu_target
from kernelweld.codegen.crosscompile_worker import Request, _compile

_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
}


class Recorder:
    """Stands for a kernel, and keeps how it is called."""

    def __init__(self) -> None:
        self.arguments: tuple[object, ...] = ()
        self.options: dict[str, int] = {}

    def __getitem__(self, grid: object) -> Recorder:
        return self

    def __call__(self, *arguments: object, **options: int) -> None:
        self.arguments, self.options = arguments, options


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_file(path: Path, targets: tuple[str, ...]) -> None:
    module = module_of(path)
    (name,) = (n for n in vars(module) if n.endswith("_kernel"))
    kernel, recorder = getattr(module, name), Recorder()
    setattr(module, name, recorder)
    module._weld(**module.draw(0, "cpu"))
    kinds = [f"*{_TYPES[a.dtype]}" if isinstance(a, torch.Tensor) else "i32" for a in recorder.arguments]
    signature = dict(zip(kernel.arg_names, kinds, strict=True))
    resolved = tuple(map(gpu_target, targets))
    request = Request(str(path), name, signature, targets=resolved, stages=(), **recorder.options)
    for target in resolved:
        compiled = _compile(kernel, request, *target)
        print(path.stem, target[0], compiled.registers, compiled.stack_bytes, flush=True)


if __name__ == "__main__":
    for file in sorted(Path(sys.argv[1]).glob("*.py")):
        compile_file(file, ("sm_90", "sm_100", "gfx942"))
