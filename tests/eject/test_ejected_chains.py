"""Files of chains of norm, gate, rotation, quantization, cache write: right alone, as ruff leaves them."""

from __future__ import annotations

import importlib.util
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

#: A store to the row behind each place.
BESIDE = (
    "tl.store(cache_ptr + (index_place + 1) % 12 * 384 + lane_512, rms_norm.to(tl.bfloat16), "
    "mask=in_rows & in_384)"
)

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
@pytest.mark.nightly
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


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("tl.rsqrt(", "1.01 * tl.rsqrt("),
        ("(1 / 384) + 1e-06", "(1 / 384) + 1e-05"),
        ("x_ptr + row_i64 * 384", "x_ptr + (2 - row_i64) * 384"),
        ("cache_ptr + index_place * 384", "cache_ptr + (index_place // 2) * 384"),
        ("mask=in_rows & in_384 & index_exists", "mask=in_rows & in_384 & index_exists & (row < 1)"),
        ("    # rms_norm[0:384]\n", f"    {BESIDE}\n"),
    ],
    ids=["values", "epsilon", "rows", "places", "one row alone", "other rows as well"],
)
def test_a_wrong_kernel_fails_its_own_test(right: str, wrong: str, tmp_path: Path, files: Files) -> None:
    """A norm whose rows go to slots of a cache."""
    (chain,) = (c for c in CHAINS if str(c) == "rms | no rope | bf16 | NHD | 3x384")
    (module,) = files(welds_of(chain), tmp_path)
    module.test_never_worse_than_torch()  # type: ignore[attr-defined]
    path = tmp_path / "wrong.py"
    text = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    assert right in text
    path.write_text(text.replace(right, wrong))
    spec = importlib.util.spec_from_file_location("wrong", path)
    assert spec is not None and spec.loader is not None
    changed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(changed)
    with pytest.raises(AssertionError):
        changed.test_never_worse_than_torch()
