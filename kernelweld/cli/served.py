"""The models that ``models:`` targets name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

if TYPE_CHECKING:
    from kernelweld.cli.hf import Phase

#: bfloat16, and linear layers and latents in fp8.
NAMES = ("deepseek_v32", "deepseek_v32_fp8")
#: Tokens in the caches before a call: of a real decode, and of a tiny one.
_CACHED = {True: 8191, False: 100}


def build(
    name: str,
    *,
    full: bool,
    layers: int | None,
    phase: Phase,
    batch: int,
    dtype: torch.dtype,
    device: str,
    rows: int | None,
) -> tuple[nn.Module, tuple[object, ...], Mapping[str, object]]:
    """The model ``name`` and the arguments of one call: see ``kernelweld.models.example``.

    ``full`` is a rank's slice of eight. ``rows``: a prompt of so many tokens, or so many sequences.
    """
    from kernelweld.models.example import example
    from kernelweld.models.parallel import Parallel

    step: Literal["prefill", "decode"] = "decode" if phase == "decode" else "prefill"
    sequences = rows if rows is not None and step == "decode" else batch
    return example(
        full=full,
        layers=layers,
        phase=step,
        batch=sequences,
        cache=_CACHED[full] if step == "decode" else 0,
        tokens=rows if step == "prefill" else None,
        dtype=dtype,
        device=device,
        parallel=Parallel(0, 8) if full else None,
        fp8=name.endswith("_fp8"),
    )
