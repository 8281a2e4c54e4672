"""What ``doctor`` looks at, each by a function that raises nothing: the worst is a finding."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import kernelweld
from kernelweld.errors import BadOffer
from kernelweld.integrations.vllm import versions

if TYPE_CHECKING:
    from kernelweld.codegen.emit import Kernel

State = Literal["ok", "missing", "broken"]

OPTIONAL: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "transformers": ("transformers", "pip install 'kernelweld[hf]', for hf: targets and model folders"),
        "FlashInfer": ("flashinfer-python", "pip install flashinfer-python, to compare with its kernels"),
        "NIXL": ("nixl", "pip install 'kernelweld[pd]'"),
    }
)
_OLDEST = (3, 11)
_COMPILED_FOR = ("sm_90", "sm_100", "gfx942")
_KERNEL = """import triton
import triton.language as tl


@triton.jit
def doctor(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1.0)
"""


@dataclass(frozen=True)
class Finding:
    """One line. ``needed``: kernelweld does not work without it."""

    what: str
    state: State
    found: str
    remedy: str = ""
    needed: bool = False

    @property
    def fails(self) -> bool:
        return self.needed and self.state != "ok"


def python() -> Iterator[Finding]:
    yield Finding("kernelweld", "ok", kernelweld.__version__, needed=True)
    good = sys.version_info[:2] >= _OLDEST
    remedy = "" if good else "Use Python 3.11 or newer."
    yield Finding("python", "ok" if good else "broken", platform.python_version(), remedy, needed=True)


def packages() -> Iterator[Finding]:
    """torch and triton by an import, as a damaged one fails there; the rest by what pip knows."""
    for name in ("torch", "triton"):
        yield _imported(name)
    for name, (package, remedy) in OPTIONAL.items():
        try:
            yield Finding(name, "ok", version(package))
        except PackageNotFoundError:
            yield Finding(name, "missing", "not installed", remedy)


def vllm() -> Iterator[Finding]:
    """The vLLM of this environment, whether the pass works inside it, and whether it logs a summary."""
    found = versions.installed()
    if found is None:
        remedy = f"pip install 'kernelweld[vllm]', to serve with it: {versions.tested()} are supported"
        yield Finding("vLLM", "missing", "not installed", remedy)
        return
    refusal = versions.refusal(found)
    if refusal is None:
        yield Finding("vLLM", "ok", f"{found}, supported: {versions.tested()}")
    else:
        remedy = f"Install a release from {versions.tested()}."
        yield Finding("vLLM", "broken", f"kernelweld is inactive in it: {refusal}", remedy)
    yield _summary_of_vllm()


def _summary_of_vllm() -> Finding:
    """The entry point by which vLLM loads what logs the summary; ``VLLM_PLUGINS`` may leave it out."""
    what, without = "vLLM plug-in", "Without it vLLM welds and logs pieces, and no summary"
    registered = {point.name: point for point in entry_points(group="vllm.general_plugins")}
    if "kernelweld" not in registered:
        remedy = f"{without}: install kernelweld by pip in this environment."
        return Finding(what, "missing", "its entry point is not registered", remedy)
    wanted = os.environ.get("VLLM_PLUGINS")
    if wanted is not None and "kernelweld" not in wanted.split(","):
        return Finding(
            what, "missing", f"VLLM_PLUGINS={wanted} leaves it out", f"{without}: add kernelweld to it."
        )
    return Finding(what, "ok", registered["kernelweld"].value)


def _imported(name: str) -> Finding:
    from importlib import import_module

    try:
        return Finding(name, "ok", str(import_module(name).__version__), needed=True)
    except Exception as error:  # a package that does not fit the machine raises what it likes
        remedy = f"Install a {name} that fits this machine: pip install --force-reinstall {name}"
        return Finding(name, "broken", _words(error), remedy, needed=True)


def gpu() -> Iterator[Finding]:
    """The GPU as torch sees it, and the driver as it says itself."""
    driver = _driver()
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = dict.fromkeys(torch.cuda.get_device_name(i) for i in range(count))
    except Exception as error:
        yield Finding("GPU", "broken", _words(error), "Reinstall torch or the driver.")
        return
    if count:
        yield Finding("GPU", "ok", f"{count} × {', '.join(names)}")
    elif driver is not None:
        remedy = "Install a torch that is built for this driver."
        yield Finding("GPU", "broken", "there is a driver, and torch sees no CUDA device", remedy)
    else:
        remedy = "Kernels run in Triton's interpreter here, and compile for GPUs elsewhere."
        yield Finding("GPU", "missing", "torch sees no CUDA device", remedy)
    yield Finding("driver", "missing" if driver is None else "ok", driver or "no NVIDIA driver")


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def cache() -> Iterator[Finding]:
    """The folder of generated kernels, by a file that is written and removed."""
    try:
        from kernelweld.codegen.cache import cache_dir

        folder = cache_dir()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"{error.filename or ''}: {error.strerror}"
        remedy = "Set KERNELWELD_CACHE_DIR to a folder that can be written."
        yield Finding("cache folder", "broken", reason, remedy, needed=True)
    except ImportError as error:
        yield _unusable("cache folder", error)
    else:
        yield Finding("cache folder", "ok", str(folder), needed=True)


def interpreter() -> Iterator[Finding]:
    """How Triton runs kernels in a process that is started like this one."""
    wanted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    words = "on: TRITON_INTERPRET is set" if wanted else "off"
    yield Finding("interpreter", "ok", words, "Unset TRITON_INTERPRET to run on a GPU." if wanted else "")


def compilers() -> Iterator[Finding]:
    """A kernel of one line, compiled for each target in a process of its own."""
    try:
        from kernelweld.codegen.crosscompile import compile_for, disassembles
    except ImportError as error:
        yield _unusable("compilers", error)
        return
    for target in _COMPILED_FOR:
        try:
            compile_for(_kernel(), (target,))
            yield Finding(f"compiles for {target}", "ok", "yes")
        except Exception as error:  # the compiler's, or the machine's
            remedy = "Only kernelweld compile needs it; install another triton."
            yield Finding(f"compiles for {target}", "broken", _words(error), remedy)
    state: State = "ok" if disassembles() else "missing"
    yield Finding("disassembler", state, "nvdisasm", "" if state == "ok" else "Only --emit sass needs it.")


def _kernel() -> Kernel:
    """A kernel that is as small as one can be."""
    import sympy
    import torch

    from kernelweld.codegen.emit import Kernel
    from kernelweld.codegen.launch import Launch

    names = ("x_ptr",)
    return Kernel("doctor", _KERNEL, names, (), names, sympy.Integer(1), Launch(1, 1, ()), (torch.float32,))


def plugins() -> Iterator[Finding]:
    """What other distributions offer, loaded as a pipeline would."""
    for kind in ("word", "pattern", "pass"):
        group = "kernelweld.passes" if kind == "pass" else f"kernelweld.{kind}s"
        for point in sorted(entry_points(group=group), key=lambda p: p.name):
            yield _plugin(kind, point)


def _plugin(kind: str, point: EntryPoint) -> Finding:
    origin = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    try:
        _load(kind, point)
    except Exception as error:  # whatever the import of another distribution raises
        remedy = f"Repair or uninstall the package that offers {point.value}."
        reason = error.reason if isinstance(error, BadOffer) else _words(error)
        return Finding(f"{kind} {point.name}", "broken", f"{reason}{origin}", remedy)
    return Finding(f"{kind} {point.name}", "ok", f"{point.value}{origin}")


def _load(kind: str, point: EntryPoint) -> None:
    from kernelweld.ir import vocabulary
    from kernelweld.passes import table as passes
    from kernelweld.patterns import table as patterns

    if kind == "pass":
        passes.load(point.name)
    elif kind == "pattern":
        patterns.loaded(point)
    else:
        vocabulary.loaded(point)


def _unusable(what: str, error: ImportError) -> Finding:
    return Finding(what, "broken", _words(error), "Repair what is broken above first.", needed=True)


def _words(error: Exception) -> str:
    """The kind of an error and its first line."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


#: In the order in which they are shown: what others need comes first.
CHECKS: Mapping[str, Callable[[], Iterator[Finding]]] = MappingProxyType(
    {
        "python": python,
        "packages": packages,
        "GPU": gpu,
        "cache folder": cache,
        "interpreter": interpreter,
        "compilers": compilers,
        "vLLM": vllm,
        "plug-ins": plugins,
    }
)
