"""The interpreter with exact arithmetic for every test of kernels, and how many cases hypothesis draws."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from kernelweld.codegen.interpreter import exact_casts

# HYPOTHESIS_PROFILE=nightly draws many more cases.
settings.register_profile("kernels", max_examples=12, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=300, deadline=None)


@pytest.fixture(autouse=True, scope="session")
def exact() -> Iterator[None]:
    """Kernels round and multiply as on hardware."""
    with exact_casts():
        yield
