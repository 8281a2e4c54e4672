"""Compiling a generated kernel for GPUs that this machine does not have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch

from kernelweld.codegen import crosscompile_worker
from kernelweld.codegen.cache import write
from kernelweld.codegen.crosscompile_worker import Compiled, Request, compile_all
from kernelweld.codegen.emit import Kernel
from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.launch import Launch, choose
from kernelweld.codegen.task import WeldProgram
from kernelweld.errors import CodegenFailed, UnknownName

#: Targets that are tested.
TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")

#: Others that there are. A name that LLVM does not know ends the process, so that it has to be refused here.
_OTHERS = ("sm_75", "sm_86", "sm_87", "sm_89", "sm_103", "sm_121", "gfx90a", "gfx1100", "gfx1200", "gfx1201")

_POINTERS: Mapping[torch.dtype, str] = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


#: The texts that a kernel is compiled through, by whose GPUs they are for.
STAGES: Mapping[str, tuple[str, ...]] = {
    "cuda": ("ttir", "ttgir", "ptx", "sass"),
    "hip": ("ttir", "ttgir", "amdgcn"),
}

_PACKS_FROM = 80  # the first NVIDIA architecture that rounds two values to bfloat16 at once


def compile_for(kernel: Kernel, targets: Sequence[str], stages: Sequence[str] = ()) -> list[Compiled]:
    """``kernel`` compiled for each target ("sm_90", "gfx942", …), without a GPU, with the text of each of
    ``stages`` that the target has.

    A process that interprets kernels cannot compile them, so there a second process does it. Raises
    ``UnknownName`` for a target that is none, and ``CodegenFailed`` with the compiler's words when the
    kernel does not compile.
    """
    request = Request(
        path=str(write(kernel)),
        name=kernel.name,
        signature=signature(kernel),
        targets=tuple(map(gpu_target, targets)),
        num_warps=kernel.launch.num_warps,
        num_stages=kernel.launch.num_stages,
        stages=tuple(stages),
    )
    return _in_subprocess(kernel, request) if interpreting() else _here(kernel, request)


def signature(kernel: Kernel) -> dict[str, str]:
    """Triton's type of every kernel argument."""
    pointers = {name: _POINTERS[dtype] for name, dtype in zip(kernel.tensors, kernel.dtypes, strict=True)}
    return pointers | dict.fromkeys(kernel.symbols, "i32")


def gpu_target(name: str) -> tuple[str, str, int | str, int]:
    """The name, backend, architecture and warp size of a target. Raises ``UnknownName`` for what is none."""
    known = (*TARGETS, *_OTHERS)
    if (found := re.fullmatch(r"(sm_(\d+))a?", name)) and found[1] in known:
        return name, "cuda", int(found[2]), 32
    if name.startswith("gfx") and name in known:
        return name, "hip", name, 64 if name.startswith("gfx9") else 32
    raise UnknownName("GPU target", name, known)


def launch_for(program: WeldProgram, target: str) -> Launch:
    """The launch that is chosen for ``program`` on a GPU of that name: as there, by all that it can do."""
    _, backend, architecture, _ = gpu_target(target)
    return choose(program, packed=backend == "cuda" and int(architecture) >= _PACKS_FROM)


def disassembles() -> bool:
    """Whether this triton comes with the disassembler that "sass" needs."""
    return crosscompile_worker.tool("nvdisasm").is_file()


def _here(kernel: Kernel, request: Request) -> list[Compiled]:
    try:
        return compile_all(request)
    except Exception as error:  # the compiler raises many types; all mean the same here
        raise _failed(kernel, f"{type(error).__name__}: {error}") from error


def _failed(kernel: Kernel, words: str) -> CodegenFailed:
    """The error that shows the compiler's own words under its first line."""
    return CodegenFailed(kernel.name, "it does not compile", excerpt=words)


def _in_subprocess(kernel: Kernel, request: Request) -> list[Compiled]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, crosscompile_worker.__file__]
    done = subprocess.run(
        command,
        input=json.dumps(asdict(request)),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise CodegenFailed(
            kernel.name, f"the compiler process ended with {done.returncode}: {done.stderr[-500:]}"
        )
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise _failed(kernel, answer["error"])
    return [Compiled(**fields) for fields in answer["compiled"]]
