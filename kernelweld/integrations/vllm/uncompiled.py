"""Models that vLLM runs without compiling them: where there is no graph, no pass can do anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Device = Literal["cuda", "cpu"]

#: Families of architectures that vLLM 0.26 runs with CUDA graphs that it breaks itself, in place of graphs
#: that it compiles, and those that newer releases do so (``DEFAULT_BREAKABLE_CUDAGRAPH_ARCHITECTURES``).
_IN_0_26 = ("DeepSeekV4", "DeepseekV4", "Inkling", "MiniMaxM3Sparse")
_NEWER = (
    *_IN_0_26,
    *("AliceAI", "Beam", "DeepseekV32", "Dots3Note", "Glm5Next", "GlmMoeDsa", "HYV4", "KimiK3"),
    *("KimiLinear", "MuseSpark", "Qwen4Exp", "Step5"),
)

#: Of these, families whose code for CPUs can be compiled. The code for CUDA never can.
_COMPILABLE_ON_CPU = ("DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM")

_OFF = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}


@dataclass(frozen=True)
class Uncompiled:
    """Why there are no graphs; the ``environment`` in which there would be, empty if there is none."""

    reason: str
    environment: Mapping[str, str] = field(default_factory=dict)


def uncompiled(
    architectures: Iterable[str], release: tuple[int, int] | None = None, device: Device = "cuda"
) -> Uncompiled | None:
    """Whether vLLM runs a model without compiling it; ``release`` is vLLM's, None the newest known."""
    oldest = release is not None and release <= (0, 26)
    families = _IN_0_26 if oldest else _NEWER
    name = next((one for one in architectures if one.startswith(families)), None)
    if name is None:
        return None
    if device == "cpu" and not oldest and name in _COMPILABLE_ON_CPU:
        reason = f"vLLM does not compile {name} unless VLLM_USE_BREAKABLE_CUDAGRAPH=0 is set"
        return Uncompiled(reason, _OFF)
    since = "" if name.startswith(_IN_0_26) else " in releases after 0.26"
    return Uncompiled(
        f"vLLM does not compile {name}{since}: it is written without torch.compile, so there are no graphs, "
        "and VLLM_USE_BREAKABLE_CUDAGRAPH=0 does not change that"
    )
