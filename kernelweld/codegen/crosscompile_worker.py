"""Compiles one kernel file for GPU targets; run as a script, it answers one request from stdin on stdout.

It imports nothing of kernelweld, so that a process which must not interpret starts in a moment.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True)
class Request:
    """What to compile: the kernel ``name`` in the file at ``path``, its argument types, and how it is
    launched.
    """

    path: str
    name: str
    signature: dict[str, str]
    targets: tuple[tuple[str, str, int | str, int], ...]  # name, backend, architecture, warp size
    num_warps: int
    num_stages: int
    stages: tuple[str, ...] = ()  # texts that are wanted: ttir, ttgir, ptx, sass, amdgcn


@dataclass(frozen=True)
class Compiled:
    """One kernel compiled for one target.

    ``registers`` are per thread. ``stack_bytes`` per thread hold spilled registers and local arrays; 0 is
    what a good kernel has. ``shared_bytes`` are per program, ``binary_bytes`` the size of the cubin or
    hsaco. ``texts`` are the wanted stages that the target has.
    """

    target: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    binary_bytes: int
    seconds: float
    assembly: str
    texts: dict[str, str] = field(default_factory=dict)


def compile_all(request: Request) -> list[Compiled]:
    """The request compiled for each of its targets, in order; this process must not be interpreting."""
    function = _load(request)
    return [_compile(function, request, *target) for target in request.targets]


def _load(request: Request) -> triton.JITFunction:
    spec = importlib.util.spec_from_file_location(f"crosscompiled_{Path(request.path).stem}", request.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{request.path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, request.name)


def _compile(
    function: triton.JITFunction, request: Request, name: str, backend: str, arch: int | str, warp_size: int
) -> Compiled:
    pointers = [i for i, kind in enumerate(request.signature.values()) if kind.startswith("*")]
    aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
    options = {"num_warps": request.num_warps, "num_stages": request.num_stages, "enable_fp_fusion": True}
    start, target = time.perf_counter(), GPUTarget(backend, arch, warp_size)
    source = ASTSource(function, request.signature, attrs=aligned)
    with _asked_by_kernels(target):
        kernel = triton.compile(source, target=target, options=options)
    seconds = time.perf_counter() - start
    nvidia = backend == "cuda"
    binary, text = (kernel.asm[kind] for kind in (("cubin", "ptx") if nvidia else ("hsaco", "amdgcn")))
    registers, stack = _nvidia_usage(binary) if nvidia else _amd_usage(text)
    texts = _texts(kernel.asm, request.stages)
    sizes = (registers, stack, kernel.metadata.shared, len(binary))
    return Compiled(name, *sizes, round(seconds, 3), text, texts)


def _texts(stages: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, str]:
    """The wanted ones of a kernel's stages; machine code of NVIDIA's is disassembled."""
    texts = {stage: str(stages[stage]) for stage in wanted if stage in stages and stage != "sass"}
    if "sass" in wanted and "cubin" in stages:
        texts["sass"] = _run_on("nvdisasm", stages["cubin"], "--print-code")
    return texts


@contextmanager
def _asked_by_kernels(target: GPUTarget) -> Iterator[None]:
    """Makes ``target`` the GPU that kernels see where they ask which one they are compiled for."""
    known = driver._active  # None where there is no GPU, which `driver.active` refuses
    driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    try:
        yield
    finally:
        driver.set_active(known)


def _nvidia_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, stack bytes) as ``cuobjdump`` reports them; spills show in the stack."""
    text = _run_on("cuobjdump", cubin, "--dump-resource-usage")
    found = _RESOURCES.search(text)
    if found is None:
        raise RuntimeError(f"no resource usage in the output of cuobjdump: {text!r}")
    return int(found[1]), int(found[2])


def _run_on(name: str, cubin: bytes, option: str) -> str:
    """What a tool that comes with triton says of ``cubin``."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool(name)), option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tool(name: str) -> Path:
    """Where triton has its own copy of one of NVIDIA's tools."""
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name


def _amd_usage(assembly: str) -> tuple[int, int]:
    """(vector registers, private segment bytes) from the metadata of the assembly."""
    values = [
        re.search(rf"\.{key}:\s*(\d+)", assembly) for key in ("vgpr_count", "private_segment_fixed_size")
    ]
    registers, stack = (int(v[1]) if v is not None else 0 for v in values)
    return registers, stack


def main() -> None:
    """Reads a request, writes ``{"compiled": […]}`` or ``{"error": …}``."""
    fields: dict[str, Any] = json.load(sys.stdin)
    fields |= {"targets": tuple(map(tuple, fields["targets"])), "stages": tuple(fields["stages"])}
    try:
        answer: dict[str, object] = {"compiled": [asdict(c) for c in compile_all(Request(**fields))]}
    except Exception as error:  # the caller raises it again with the weld's name
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
