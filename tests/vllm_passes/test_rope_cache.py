"""vLLM's tests of queries and keys: test_qk_norm_rope_fusion, test_rope_kvcache_fusion,
test_rocm_aiter_qk_norm_rope_kvcache_fusion and test_mla_rope_kvcache_cat_fusion. Norms and rotation are one
weld; the write to a cache that only the engine knows stays a call behind it.
"""

from __future__ import annotations

import pytest
import torch
from attention import Geometry, Interleaved, Parts, QueriesAndKeys, Turn, latent
from graphs import graph_of, same
from harness import weld
from torch import Tensor

from kernelweld.ir import RMSNorm, Rope, RopeTable

LAYER = "model.layers.0.self_attn.attn"


@pytest.mark.parametrize(
    ("norm", "turn", "is_neox", "parts"),
    [
        ("ir", "custom", True, "scattered"),
        ("custom", "flashinfer", False, "split"),
        ("native", "native", True, "scattered"),
        pytest.param("custom", "custom", True, "split", marks=pytest.mark.nightly),
        pytest.param("ir", "flashinfer", True, "scattered", marks=pytest.mark.nightly),
        pytest.param("ir", "native", False, "split", marks=pytest.mark.nightly),
    ],
)
def test_both_norms_and_both_rotations_are_one_weld(
    norm: str, turn: Turn, is_neox: bool, parts: Parts
) -> None:
    """vLLM's pattern needs the operator for the rotation (#28042) and one split (#33295), and tripped over
    one symbol in both arguments that FlashInfer's writes (#40587).
    """
    model = QueriesAndKeys(Geometry(16, 4, 128, 128, is_neox), norm, turn, parts)
    outcome = weld(model, model.inputs(), dynamic=(0, 1) if turn == "flashinfer" else ())
    assert outcome.welds == ["rms_norm_rope"] and outcome.misses == []
    assert outcome.result.context.plan is not None
    assert {kind: n for kind, n in outcome.result.context.plan.words.items() if kind != "rope_table"} == {
        "rms_norm": 2,
        "rope": 2,
    }
    outcome.check()


def test_the_rotation_of_flashinfer_rounds_once() -> None:
    model = QueriesAndKeys(Geometry(2, 1, 16, 8), None, "flashinfer")
    graph = graph_of(model, model.inputs())
    expected = graph.run()
    graph.passed("canonicalize,dialect")
    table, *ropes = graph.words
    assert table == RopeTable(source="cache", layout="half", dtype=torch.float32)
    assert ropes == [Rope(8, table="half", dtype=torch.bfloat16)] * 2
    assert same(graph.run(), expected)


def test_a_draft_with_other_heads_is_welded_beside_its_model() -> None:
    """#48671: one geometry was assumed for all layers."""
    model, draft = QueriesAndKeys(Geometry(4, 2, 64, 64)), QueriesAndKeys(Geometry(2, 1, 32, 32))

    def both(x: Tensor, p: Tensor, y: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        return *model(x, p), *draft(y, r)

    outcome = weld(both, [*model.inputs(), *draft.inputs()])
    assert outcome.result.context.plan is not None
    welds = outcome.result.context.plan.welds
    assert sum(isinstance(word, RMSNorm) for w in welds for chain in w.chains for word in chain.words) == 4
    assert sum(isinstance(word, Rope) for w in welds for chain in w.chains for word in chain.words) == 4
    assert outcome.misses == []
    outcome.check()


@pytest.mark.parametrize("size", [pytest.param(96, marks=pytest.mark.nightly), 512])
def test_heads_of_any_size_are_welded(size: int) -> None:
    """#53115: with heads of 512 a pass did nothing, and did not say so."""
    model = QueriesAndKeys(Geometry(4, 2, size, size))
    outcome = weld(model, model.inputs())
    assert outcome.welds == ["rms_norm_rope"]
    outcome.check()


GEOMETRIES = {
    "full neox": Geometry(64, 8, 64, 64),
    "full interleaved": Geometry(64, 8, 64, 64, False),
    "GLM with experts": Geometry(32, 8, 128, 64),
    "GLM": Geometry(32, 2, 128, 64, False),
    "partial of small heads": Geometry(16, 2, 64, 32),
}


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("full neox", "ir"),
        ("full neox", None),
        pytest.param("full interleaved", None, marks=pytest.mark.nightly),
        ("GLM", "ir"),
        ("partial of small heads", "ir"),
        pytest.param("GLM with experts", "ir", marks=pytest.mark.nightly),
        pytest.param("full interleaved", "ir", marks=pytest.mark.nightly),
    ],
)
def test_norms_and_rotations_are_one_weld_before_the_write_to_the_cache(name: str, norm: str | None) -> None:
    model = QueriesAndKeys(GEOMETRIES[name], norm, layer=LAYER)
    outcome = weld(model, model.inputs(), dynamic=(0, 1) if name == "full neox" else ())
    assert outcome.welds == ["rms_norm_rope" if norm else "rope"]
    (miss,) = outcome.misses
    assert miss.kind == "vllm.unified_kv_cache_update" and miss.rule == "operator"
    assert "writes to a cache that is no input of the graph" in miss.reason
    assert "_C_cache_ops.reshape_and_cache_flash" in miss.remedy
    assert outcome.count(torch.ops.vllm.unified_kv_cache_update.default) == 1 and outcome.log == [
        f"write {LAYER}"
    ]
    outcome.check()


def test_interleaved_positions_of_three_axes_are_part_of_the_weld() -> None:
    model = Interleaved(Geometry(4, 2, 256, 64), "ir", "native", layer=LAYER)
    outcome = weld(model, model.inputs())
    assert outcome.welds == ["rms_norm_rope"]
    assert [miss.kind for miss in outcome.misses] == ["vllm.unified_kv_cache_update"]
    outcome.check()


def test_writes_of_all_layers_are_told_once() -> None:
    layers = [QueriesAndKeys(Geometry(2, 1, 16, 16), layer=f"layer {i}") for i in range(3)]

    def stack(x: Tensor, positions: Tensor) -> list[Tensor]:
        return [value for layer in layers for value in layer(x, positions)]

    outcome = weld(stack, layers[0].inputs())
    (miss,) = outcome.misses
    assert "(3 calls in this graph)" in miss.reason
    assert outcome.log == [f"write layer {i}" for i in range(3)]
    outcome.check()


@pytest.mark.parametrize(("is_neox", "kind"), [(True, "auto"), (False, "fp8")], ids=["neox", "interleaved"])
def test_the_rotations_of_a_latent_are_one_weld_before_its_write(is_neox: bool, kind: str) -> None:
    before, inputs = latent(is_neox, "native", kind)
    outcome = weld(before, inputs, dynamic=(0, 1) if is_neox else ())
    assert outcome.welds == ["rope"]
    assert [miss.kind for miss in outcome.misses] == ["vllm.unified_mla_kv_cache_update"]
    assert "_C_cache_ops.concat_and_cache_mla" in outcome.misses[0].remedy
    outcome.check()


def test_a_rotation_in_place_of_a_part_that_is_put_back_is_a_weld_that_reads_the_part() -> None:
    """The operator needs the part copied to rows of its own; the weld does not."""
    before, inputs = latent(True, "custom")
    outcome = weld(before, inputs)
    assert outcome.welds == ["rope"] and outcome.graph.operators == []
    outcome.check()
