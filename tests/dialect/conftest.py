"""The tests' operators, defined before any test, and functionalization as vLLM sets it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch._inductor.config

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def functionalized_as_in_vllm() -> Iterator[None]:
    """The operators of vLLM, and calls of them in the first form of ``auto_functionalized``."""
    from vllm_operators import define

    define()
    with torch._inductor.config.patch(enable_auto_functionalized_v2=False):
        yield
