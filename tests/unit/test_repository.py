"""Rules of the repository that no tool checks: import directions, sizes, the links at the top."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kernelweld"
FILES = sorted(PACKAGE.rglob("*.py"))
LINKS = ("passes", "patterns", "codegen", "models", "runtime")
MAX_FILE, MAX_FUNCTION = 400, 40

#: What each room may import, besides itself and ``kernelweld.errors``.
MAY_IMPORT = {
    "errors": set(),
    "ir": {"tables"},
    "tables": {"ir"},  # for its types only
    "patterns": {"ir"},
    "codegen": {"ir"},
    "kernels": {"codegen", "ir"},
    "passes": {"patterns", "codegen", "kernels", "ir"},
    "models": {"kernels", "ir"},
    "runtime": {"ir", "models"},
    "integrations": {"passes", "patterns", "codegen", "ir"},
    "cli": {"tables", "integrations", "passes", "patterns", "codegen", "models", "ir"},
}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and room of each import from the package, those inside functions and TYPE_CHECKING among them."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="kernelweld", names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module)) if module.startswith("kernelweld."):
                yield node.lineno, module.split(".")[1]
            case ast.Import(names=names):
                parts = (alias.name.split(".") for alias in names)
                yield from ((node.lineno, p[1]) for p in parts if p[0] == "kernelweld" and len(p) > 1)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is for"
    assert len(text.splitlines()) < MAX_FILE
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert {f.name: code_lines(f) for f in functions if code_lines(f) > MAX_FUNCTION} == {}
    if room(path) != "__init__":
        allowed = MAY_IMPORT[room(path)] | {room(path), "errors", "__version__"}
        assert [place for place in imported_rooms(tree) if place[1] not in allowed] == []


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in FILES}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()


@pytest.mark.parametrize("name", LINKS)
def test_links_at_the_top(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.readlink() == Path("kernelweld") / name
    assert (link / "__init__.py").is_file()
