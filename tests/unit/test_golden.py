"""The ``golden`` fixture itself: what it compares, when it fails, and that CI cannot rewrite the files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"
CONFTEST = Path(__file__).parents[1] / "conftest.py"
WRITTEN = "tests/golden/test_one/test_text.txt"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose only test compares two lines, outside CI."""
    monkeypatch.delenv("CI", raising=False)
    tests = pytester.mkdir("tests")
    (tests / "conftest.py").write_text(CONFTEST.read_text())
    (tests / "test_one.py").write_text("def test_text(golden):\n    golden('a\\nb')\n")
    return pytester


def run(suite: pytest.Pytester, *options: str) -> tuple[int, str]:
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "tests", *options)
    return int(result.ret), result.stdout.str() + result.stderr.str()


def test_missing_file_fails_with_the_remedy(suite: pytest.Pytester) -> None:
    code, text = run(suite)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert f"{WRITTEN} does not exist; run pytest --update-golden and review the new file" in text


def test_update_writes_and_later_runs_compare(suite: pytest.Pytester) -> None:
    assert run(suite, "--update-golden")[0] == pytest.ExitCode.OK
    written = suite.path / WRITTEN
    assert written.read_text() == "a\nb\n"
    assert run(suite)[0] == pytest.ExitCode.OK
    written.write_text("a\nc\n")
    code, text = run(suite)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert f"differs from {WRITTEN}; if meant, run pytest --update-golden" in text


@pytest.mark.parametrize("ci", ["true", "1"])
def test_ci_cannot_update(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    code, text = run(suite, "--update-golden")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--update-golden is not allowed in CI" in text
    assert not (suite.path / "tests" / "golden").exists()
