"""kernelweld: automatic kernel fusion for LLM inference, explained.

``model = kernelweld.fuse(model)`` compiles a model with its norm, rotary, gate and residual chains welded
into generated Triton kernels; ``kernelweld.report(model)`` says what was welded, what was not, and why.
``kernelweld.vllm_pass`` does the same inside vLLM, whose compilation config names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelweld.integrations.vllm.configured import vllm_pass

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kernelweld.integrations.fuse import fuse, report
    from kernelweld.ir.report import Report

__all__ = ["Report", "__version__", "fuse", "report", "vllm_pass"]

_HOMES = {
    "fuse": "kernelweld.integrations.fuse",
    "report": "kernelweld.integrations.fuse",
    "Report": "kernelweld.ir.report",
}


def __getattr__(name: str) -> object:
    """Public names are imported when first used, so that importing a sub-package stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kernelweld' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
