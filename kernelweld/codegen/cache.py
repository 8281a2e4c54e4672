"""Generated kernels as files named by their content, and as functions ready to launch."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from threading import RLock
from types import ModuleType

import triton
from triton.runtime.autotuner import Autotuner

from kernelweld.codegen.emit import Kernel
from kernelweld.errors import CodegenFailed

_LOADING = RLock()


def cache_dir() -> Path:
    """``KERNELWELD_CACHE_DIR``, or ``kernelweld`` in the user's cache folder."""
    chosen = os.environ.get("KERNELWELD_CACHE_DIR")
    return Path(chosen) if chosen else Path.home() / ".cache" / "kernelweld"


def digest(kernel: Kernel) -> str:
    """The content address of a kernel: source and launch parameters."""
    return hashlib.sha256(f"{kernel.name}\n{kernel.launch}\n{kernel.source}".encode()).hexdigest()[:16]


def write(kernel: Kernel) -> Path:
    """The path of the kernel's file, written atomically unless it is there already."""
    folder = cache_dir() / "kernels"
    path = folder / f"{kernel.name}_{digest(kernel)}.py"
    if path.is_file() and path.read_text(encoding="utf-8") == kernel.source:
        return path
    try:
        write_text(path, kernel.source)
    except OSError as error:
        raise CodegenFailed(
            kernel.name, f"its file cannot be written to {folder} ({error.strerror})"
        ) from error
    return path


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all, its folder with it; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).replace(path)


def load(kernel: Kernel) -> Autotuner:
    """The kernel as a one-config ``triton.autotune``: the only form whose warps every launch path honours.

    The same content gives the same object within a process.
    """
    with _LOADING:
        return _tuned(write(kernel), kernel.name, kernel.launch.num_warps, kernel.launch.num_stages)


def load_function(kernel: Kernel) -> triton.JITFunction:
    """The plain jitted function (an interpreted one under the interpreter), for cross-compilation and
    direct use.
    """
    with _LOADING:
        return _function(write(kernel), kernel.name)


@cache
def _tuned(path: Path, name: str, num_warps: int, num_stages: int) -> Autotuner:
    config = triton.Config({}, num_warps=num_warps, num_stages=num_stages)
    return triton.autotune(configs=[config], key=[])(_function(path, name))


@cache
def _function(path: Path, name: str) -> triton.JITFunction:
    return getattr(_module(path), name)


def _module(path: Path) -> ModuleType:
    """Imports the file under a name of its own, so that tracebacks and profilers show it."""
    name = f"kernelweld_kernels.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CodegenFailed(path.stem, f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
