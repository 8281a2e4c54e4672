"""What the tests of ejected files share: programs of other folders on the path, and checks of files."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelweld.passes.eject import Provenance, eject
from kernelweld.passes.example_inputs import concrete
from kernelweld.passes.verification.specimen import Specimen

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "coverage"), str(ROOT / "tests" / "dialect")]

#: Runs pytest where an import of kernelweld fails, as it would where it is not installed.
_ALONE = """
import sys

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "kernelweld":
            raise ImportError("kernelweld is not installed here")

sys.meta_path.insert(0, Absent())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""

Files = Callable[[Iterable[Specimen], Path], list[ModuleType]]
Check = Callable[..., None]


@pytest.fixture
def files() -> Files:
    """Writes the file of each weld to a folder; the modules, in order."""

    def write(welds: Iterable[Specimen], folder: Path) -> list[ModuleType]:
        modules = []
        for number, one in enumerate(welds):
            name = f"{one.name}_{number}"
            path = folder / f"{name}.py"
            path.write_text(eject(one, name, Provenance("a test", 1, "0", name)))
            modules.append(_module(path))
        return modules

    return write


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def passes_alone() -> Check:
    """Runs the tests of all files of a folder without kernelweld: in Triton's interpreter, or on a GPU."""

    def run(folder: Path, *, interpret: bool = True) -> None:
        names = sorted(path.name for path in folder.glob("*.py"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONPATH"))}
        command = [sys.executable, "-c", _ALONE, "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
        done = subprocess.run(
            [*command, "--rootdir", str(folder), *names],
            cwd=folder,
            env={**environment, "TRITON_INTERPRET": str(int(interpret))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "skipped" not in done.stdout
        assert done.stdout.count(".") >= 3 * len(names)

    return run


@pytest.fixture
def ruff_clean() -> Check:
    """By ruff's own rules and by the repository's, formatted at 100 columns and unchanged at 110."""
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if ruff is None:
        pytest.skip("ruff is not installed; it is in the extra `dev`")

    def run(folder: Path) -> None:
        for how in (
            ("check", "--isolated"),
            ("check", "--config", str(ROOT / "pyproject.toml")),
            ("format", "--diff", "--isolated", "--line-length", "100"),
            ("format", "--diff", "--isolated", "--line-length", "110"),
        ):
            done = subprocess.run([ruff, *how, str(folder)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr

    return run


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


@pytest.fixture
def same_as_the_nodes() -> Callable[[Specimen, ModuleType], bool]:
    return _same_as_the_nodes


def _same_as_the_nodes(one: Specimen, module: ModuleType) -> bool:
    """Whether ``reference`` of a file gives the bits that the weld's nodes give, also in its caches.

    Rows are put into caches by the meaning of a write: its nodes may be those of an operator with several.
    """
    arguments, values = module.draw(0, "cpu"), tuple(module.draw(0, "cpu").values())
    own = module._tuple(module.reference(**arguments))
    inputs = one.computed.graph.find_nodes(op="placeholder")
    sizes = [concrete(node.meta["val"]) for node in inputs[len(values) :]]
    found = iter(one.computed(*values, *sizes))
    if not all(torch.equal(bits(mine), bits(next(found))) for mine in own):
        return False
    for part in one.caches:
        rows, *places = (next(found) for _ in range(part.operands))
        before = part.of(values[part.cache])
        expected = part.word.reference(before, rows, *places, *[None] * (2 - len(places)))
        written = part.of(tuple(arguments.values())[part.cache])
        if not torch.equal(bits(written), bits(expected)):
            return False
    return True
