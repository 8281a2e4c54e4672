"""Shared by all tests: the ``gpu`` marker and the ``golden`` fixture."""

from __future__ import annotations

import os

# Read when triton is first imported. Tests that compile use a second process; GPU runs set it to 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "--update-golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(UPDATE, action="store_true", help="write golden files from what the tests produce now")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(UPDATE) and os.environ.get("CI", "").lower() in ("1", "true"):
        raise pytest.UsageError(f"{UPDATE} is not allowed in CI: a person reviews what it writes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; torch.cuda.is_available() is False")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that compares a text with ``tests/golden/<test file>/<test name>.txt``.

    With ``--update-golden`` it writes the file. A missing file fails. One test compares one text.
    """
    path = GOLDEN / request.path.stem / f"{re.sub(r'[^A-Za-z0-9_.=-]+', '-', request.node.name)}.txt"
    shown = path.relative_to(GOLDEN.parent.parent)

    def compare(text: str) -> None:
        text = text.rstrip("\n") + "\n"
        if request.config.getoption(UPDATE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.is_file():
            pytest.fail(f"{shown} does not exist; run pytest {UPDATE} and review the new file", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"differs from {shown}; if meant, run pytest {UPDATE}"

    return compare
