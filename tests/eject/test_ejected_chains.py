"""Files of chains of norm, gate, rotation, quantization, cache write: right alone, as ruff leaves them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from combinations import Chain, chains
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.verification.specimen import Specimen, specimen

CHAINS = list(chains())
PARTS = 48

Files = Callable[..., list[object]]
Check = Callable[..., None]
Same = Callable[..., bool]

every_part = pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(CHAINS[5::480], id="a few"),
        *(
            pytest.param(CHAINS[k::PARTS], marks=pytest.mark.nightly, id=f"{k} of {PARTS}")
            for k in range(PARTS)
        ),
    ],
)


def welds_of(chain: Chain) -> list[Specimen]:
    mode = FakeTensorMode()
    inputs = [mode.from_tensor(t) for t in chain.inputs()]
    with mode, torch.no_grad():
        functional = torch.func.functionalize(chain, remove="mutations")
        graph = make_fx(functional, decomposition_table=select_decomp_table())(*inputs)
    plan = (
        Pipeline.from_text("canonicalize,dialect,raise,plan{keep-all=true}", strict=True)
        .run(graph)
        .context.plan
    )
    assert plan is not None
    return [specimen(weld) for weld in plan.welds]


@pytest.mark.slow
@every_part
def test_their_tests_pass_alone(
    chosen: Sequence[Chain], tmp_path: Path, files: Files, passes_alone: Check, same_as_the_nodes: Same
) -> None:
    welds = [one for chain in chosen for one in welds_of(chain)]
    modules = files(welds, tmp_path)
    assert [
        one.name for one, module in zip(welds, modules, strict=True) if not same_as_the_nodes(one, module)
    ] == []
    passes_alone(tmp_path)


@every_part
def test_they_are_as_ruff_leaves_them(
    chosen: Sequence[Chain], tmp_path: Path, files: Files, ruff_clean: Check
) -> None:
    files([one for chain in chosen for one in welds_of(chain)], tmp_path)
    ruff_clean(tmp_path)


@pytest.mark.gpu
def test_their_tests_pass_on_a_gpu(tmp_path: Path, files: Files, passes_alone: Check) -> None:
    files([one for chain in CHAINS[5::97] for one in welds_of(chain)], tmp_path)
    passes_alone(tmp_path, interpret=False)


@pytest.mark.slow
def test_they_compile_for_gpus_without_spills(tmp_path: Path, files: Files) -> None:
    """Packed rounding is for NVIDIA's GPUs alone, and the file for all."""
    files([one for chain in CHAINS[5::1500] for one in welds_of(chain)], tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compile_ejected.py")), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 3 * len(list(tmp_path.glob("*.py")))
    assert {stack for *_, stack in lines} == {"0"}
