"""The two welds of DeepSeek-V3.2 that are timed against vLLM's kernels: one launch each, the model's values,
and a comparison that tells another computation from another rounding.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import kernelweld
from kernelweld.cli.captured import PIPELINE
from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.summary import run_reported

FOLDER = Path(__file__).parent
STAND_IN = FOLDER / "vllm_stand_in.py"

QUERIES = "rope__rope_quant_scale_quant"
WELDS = {
    "latents": "rms_norm__rms_norm_rope_cache_write__layer_norm_rope_quant_scale_quant_cache_write",
    "queries apart": QUERIES,
    "queries joined": QUERIES,
    "queries e4m3": "rope_quant__rope_quant_scale_quant",
}


@pytest.fixture(scope="module")
def packs() -> Iterator[Any]:
    """The benchmark, which imports its neighbours by name."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.syspath_prepend(FOLDER.parents[1] / "benchmarks")
        import deepseek_packs

        yield deepseek_packs


@pytest.fixture(scope="module")
def vllm(packs: Any) -> ModuleType:
    module: ModuleType = packs.load_vllm(STAND_IN)
    return module


def drawn(packs: Any, name: str, tokens: int) -> tuple[Any, torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    pack = packs.PACKS[name]
    return pack, pack.module(), pack.inputs(tokens)


def test_every_pack_is_tried_here(packs: Any) -> None:
    assert set(packs.PACKS) == set(WELDS)


@pytest.mark.parametrize("name", WELDS)
def test_a_pack_is_one_weld_and_no_other_launch(name: str, packs: Any) -> None:
    _, module, inputs = drawn(packs, name, 3)
    (gm,) = capture(module, inputs).graphs
    _, report = run_reported(Pipeline.from_text(PIPELINE, strict=True), gm)
    assert [weld.name for weld in report.welds] == [WELDS[name]]
    assert report.launches.after == 1
    assert report.near_misses == ()
    kernels = [node for node in gm.graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    others = {
        str(node.target)
        for node in gm.graph.nodes
        if node.op == "call_function" and node not in kernels and "getitem" not in str(node.target)
    }
    assert len(kernels) == 1
    assert others <= {"aten.empty.memory_format", "aten.copy_.default"}, (
        "buffers, and inputs written in place"
    )


@pytest.mark.parametrize(
    "name",
    ["latents", "queries e4m3", *(pytest.param(n, marks=pytest.mark.nightly) for n in list(WELDS)[1:3])],
)
def test_the_kernel_computes_what_the_model_does(name: str, packs: Any, vllm: ModuleType) -> None:
    pack, module, inputs = drawn(packs, name, 1)
    plain = copy.deepcopy(module)
    fused = kernelweld.fuse(module, dynamic=False, strict=True, backend="interpret")
    with exact_casts():
        found = packs.agreement(pack, {"kernelweld": fused, "unfused": plain}, inputs)
    (graph,) = kernelweld.report(fused).graphs
    assert [weld.name for weld in graph.welds] == [WELDS[name]], "of one token as of several"
    apart = {kind: share for own in found["unfused"].values() for kind, share in own.items()}
    assert set(apart.values()) == {0.0}


@pytest.mark.parametrize("name", WELDS)
def test_vllm_is_called_as_its_arguments_mean(name: str, packs: Any, vllm: ModuleType) -> None:
    pack, module, inputs = drawn(packs, name, 70)
    found = packs.agreement(pack, {"unfused": module, "vllm": pack.vllm(vllm, module, 70)}, inputs)
    compared = {*found["vllm"]}
    ours = pack.results(module(*inputs), inputs)
    assert compared == ({*ours} - {"absorbed query"} if name == "queries joined" else {*ours})


WRONG = {
    "no rotation": ("latents", lambda x: {**x, "rotated key": x["rotated key"].flip(-1)}),
    "codes of the neighbour": (
        "latents",
        lambda x: {**x, "index key": (x["index key"][0].roll(1, 0), x["index key"][1])},
    ),
    "twice the weight": (
        "queries apart",
        lambda x: {**x, "index query": (x["index query"][0], x["index query"][1] * 2)},
    ),
    "another scale": (
        "queries e4m3",
        lambda x: {**x, "absorbed query": (x["absorbed query"].float() / 2).to(torch.float8_e4m3fn)},
    ),
    "not a number": ("queries apart", lambda x: {**x, "rotated query": x["rotated query"] * float("nan")}),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_not_rounding_alone_is_refused(fault: str, packs: Any) -> None:
    name, spoil = WRONG[fault]
    pack, module, inputs = drawn(packs, name, 6)
    values = pack.results(module(*inputs), inputs)
    packs.differences(values, values)
    with pytest.raises(AssertionError, match=r"key|query"):
        packs.differences(values, spoil(values))


def test_codes_one_step_apart(packs: Any) -> None:
    """Across zero too, whose two codes are one."""
    codes = torch.tensor([1.0, -1.0, 0.0, -0.0, 2**-9, 448.0]).to(torch.float8_e4m3fn)
    next_ones = torch.tensor([1.125, -1.125, 2**-9, 0.0, -(2**-9), 416.0]).to(torch.float8_e4m3fn)
    assert packs.difference(codes, next_ones) == pytest.approx({"one step": 4 / 6, "further": 1 / 6})


def test_vllms_file_is_loaded_without_the_rest_of_it(packs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ModuleType("vllm")
    monkeypatch.setitem(sys.modules, "vllm", installed)
    packs.load_vllm(STAND_IN)
    assert sys.modules["vllm"] is installed
    assert "vllm.triton_utils" not in sys.modules


def test_the_run_without_vllm_says_so(
    packs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"kernelweld": 2.5}
    monkeypatch.setattr(packs, "environment", lambda: {"gpu": "none"})
    monkeypatch.setattr(packs, "kernels", lambda step: [str(type(step()))])
    monkeypatch.setattr(packs, "compared", lambda calls, inputs: dict.fromkeys(calls, 2.5))
    monkeypatch.setattr(packs, "kernelweld", SimpleNamespace(fuse=lambda module, **_: module))
    out = tmp_path / "packs.json"
    monkeypatch.setattr("sys.argv", ["", "--tokens", "2", "--packs", "latents", "--out", str(out)])
    packs.main()
    results = json.loads(out.read_text())
    assert results["notes"] == {"vllm": "absent: its file of kernels was not given"}
    assert results["packs"]["latents @ 2"]["us"] == times
    assert "latents" in capsys.readouterr().out


def test_a_contender_of_several_kernels_is_refused(packs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "kernels", lambda step: ["one", "two"])
    monkeypatch.setattr(packs, "kernelweld", SimpleNamespace(fuse=lambda module, **_: module))
    with pytest.raises(AssertionError, match="not one kernel"):
        packs.measure("queries apart", 1, None)
