"""What a model of vLLM computes, counted from its modules: its norms, rotations and gates."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def expected_words(model: nn.Module) -> dict[str, int]:
    """How many words of each kind its graphs should hold, all of them together.

    A gated norm is one word, its gate with it. Gates inside of experts are none: vLLM's operator for experts
    computes them.
    """
    uses = list(used(model))
    names = [type(module).__name__ for _, module in uses]
    rotated = any("RotaryEmbedding" in name for name in names)
    return {
        "rms_norm": sum("RMSNorm" in name for name in names),
        "rope": 2 * rotated * names.count("Attention"),  # queries and keys
        "gate_mul": names.count("SiluAndMul")
        + sum(place == "expert_gate" for place, _ in uses)
        + sum(bool(getattr(module, "attn_output_gate", False)) for module in model.modules()),
    }


def used(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each module once for each that uses it, with its name there: layers may share one activation."""
    for user in model.modules():
        yield from user._modules.items()
