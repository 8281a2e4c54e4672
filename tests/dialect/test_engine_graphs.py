"""Graphs that a vLLM 0.26 engine handed to the pass on an H200: what is recognised, welded and saved.

``engine_graphs`` holds one piece of each kind, dumped with KERNELWELD_DUMP and without source lines:
Qwen3.5's linear and full attention and MiniMax-M2 of real dimensions, in bfloat16 and with weights in fp8
blocks, and Qwen3 by vLLM's transformers backend. vLLM is not here: operators are stand-ins that the files
describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kernelweld.integrations.graph_file import load
from kernelweld.integrations.stand_ins import undefine
from kernelweld.passes.pipeline import DEFAULT, Pipeline
from kernelweld.passes.summary import run_reported
from kernelweld.passes.verification.check import check_weld

FILES = sorted((Path(__file__).parent / "engine_graphs").glob("*.pt2"))


@pytest.fixture(autouse=True)
def stand_ins() -> Iterator[None]:
    """Other tests of this process define these operators themselves."""
    yield
    undefine()


def graph(path: Path) -> torch.fx.GraphModule:
    saved = load(path)
    assert saved.graph is not None
    return saved.graph


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_welded(path: Path, golden: Callable[[str], None]) -> None:
    result, report = run_reported(Pipeline.from_text(DEFAULT, strict=True), graph(path))
    assert result.failure is None
    lines = [f"launches {report.launches.before} -> {report.launches.after}"]
    lines += [f"{count} {kind}" for kind, count in report.words.items()]
    lines += [f"weld {' | '.join(weld.tasks)}" for weld in report.welds]
    lines += [f"near miss {miss.kind}: {miss.reason}" for miss in report.near_misses]
    golden("\n".join(lines))


@pytest.mark.gpu
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_weld_keeps_the_contract(path: Path) -> None:
    text = DEFAULT.removesuffix(",lower")
    plan = Pipeline.from_text(text, strict=True).run(graph(path)).context.plan
    assert plan is not None and plan.welds
    for weld in plan.welds:
        check = check_weld(weld, 0, None)
        assert check.holds, (weld.name, check.errors)
