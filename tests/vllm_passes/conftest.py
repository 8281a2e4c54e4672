"""vLLM's operators and functionalization, as its passes see them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "dialect")]


@pytest.fixture(autouse=True)
def as_in_vllm() -> Iterator[None]:
    """``_C`` and ``vllm`` for good, ``vllm_ir`` for a test; the first form of ``auto_functionalized``."""
    from engine import define_engine
    from vllm_ir_operators import define, rounds_to_weight

    from kernelweld.passes.dialect import ir_operators

    define_engine()
    torch.manual_seed(0)
    ir_operators._rounding.cache_clear()
    with (
        torch.library._scoped_library("vllm_ir", "DEF") as library,
        torch._inductor.config.patch(enable_auto_functionalized_v2=False),
    ):
        define(library, rounds_to_weight, False)
        yield
    ir_operators._rounding.cache_clear()
