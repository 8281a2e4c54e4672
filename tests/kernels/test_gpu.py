"""Kernels of attention on a real GPU: every kind of cache, graphs, streams and far pages.

Run with ``TRITON_INTERPRET=0``; the other tests of this folder interpret.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernelweld.codegen.interpreter import interpreting

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0"),
]


@pytest.mark.parametrize("checks", ["index", "rows", "mla", "repeats", "far"])
def test_attention(checks: str) -> None:
    import sparse_attention

    with torch.inference_mode():
        results = getattr(sparse_attention, f"check_{checks}")()
        found = {name: (error, bound) for name, error, bound in results}
    assert found
    assert {name: pair for name, pair in found.items() if not pair[0] <= pair[1]} == {}
