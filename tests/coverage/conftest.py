"""The chains' module on the path, and ``--every``: a part of the tests where each takes long."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", default="1", metavar="N[:K]", help="the tests K, K + N, K + 2N, ... alone")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After ``-m`` has left out others."""
    step, _, first = config.getoption("--every").partition(":")
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    left_out = set(here) - set(here[int(first or 0) :: int(step)])
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
