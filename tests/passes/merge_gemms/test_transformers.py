"""The groups that are found in real models, and what becomes of these models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from kernelweld.passes.merge_gemms import find_siblings, packed_groups, prepare

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.hf

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
}
GDN: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
MOE: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 4,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "minimax_m2": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v32": MLA,
    "qwen3_next": GDN | MOE,
    "qwen3_5_moe_text": GDN | MOE,
    "qwen3_5_text": GDN,
}

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj")
SHARED = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert_gate")
GDN_IN = tuple(f"linear_attn.in_proj_{name}" for name in ("qkv", "z", "b", "a"))
INDEXED = (
    (
        "self_attn.q_a_proj",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.indexer.wk",
        "self_attn.indexer.weights_proj",
    ),
    ("self_attn.q_b_proj", "self_attn.indexer.wq_b"),
)
LAYERS: dict[str, tuple[tuple[tuple[str, ...], ...], ...]] = {
    "qwen3": ((QKV, MLP), (QKV, MLP)),
    "minimax_m2": ((QKV,), (QKV,)),
    "deepseek_v32": (
        (*INDEXED, MLP),
        (*INDEXED, ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")),
    ),
    "qwen3_next": ((("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"), SHARED), (QKV, SHARED)),
    "qwen3_5_moe_text": ((GDN_IN, SHARED), (QKV, SHARED)),
    "qwen3_5_text": ((GDN_IN, MLP), (QKV, MLP)),
}


def build(name: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[name](**{**SIZES, "num_hidden_layers": 2, **CONFIGS[name]})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def expected(name: str) -> tuple[tuple[str, ...], ...]:
    layers = enumerate(LAYERS[name])
    return tuple(
        tuple(f"model.layers.{i}.{path}" for path in group) for i, layer in layers for group in layer
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_groups_found(name: str, dtype: torch.dtype) -> None:
    model, ids = build(name, dtype), torch.randint(0, 128, (2, 7))
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        prefill = find_siblings(model, (), {"input_ids": ids})
        before = model(ids, use_cache=True, past_key_values=cache).logits
        decode = find_siblings(model, (), {"input_ids": ids[:, :1], "past_key_values": cache})
        assert cache.get_seq_length() == 7
        report = prepare(model, (ids,))
        after = model(ids).logits
    assert prefill.groups == decode.groups == expected(name)
    assert prefill.skipped == ()
    assert [group.paths for group in report.merged] == list(prefill.groups)
    assert_close(after, before, rtol=0, atol=0)


def test_a_static_cache_is_not_written() -> None:
    model, ids = build("qwen3"), torch.randint(0, 128, (1, 5))
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    with torch.no_grad():
        model(ids, past_key_values=cache)
        keys = [layer.keys.clone() for layer in cache.layers]
        siblings = find_siblings(model, (), {"input_ids": ids[:, :1], "past_key_values": cache})
    assert siblings.groups == expected("qwen3")
    assert_close([layer.keys for layer in cache.layers], keys, rtol=0, atol=0)
    assert int(cache.get_seq_length()) == 5


def test_no_weights_are_needed() -> None:
    with torch.device("meta"):
        model, ids = build("deepseek_v32", torch.bfloat16), torch.zeros(1, 7, dtype=torch.int64)
        assert [group.paths for group in prepare(model, (ids,)).merged] == list(expected("deepseek_v32"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minimax_m2", "deepseek_v32", "qwen3_5_moe_text"])
def test_gemms_saved_in_the_compiled_model(name: str, compiled: Any) -> None:
    model, ids = build(name), torch.randint(0, 128, (2, 7))
    counts = []
    with torch.no_grad():
        for merged in (False, True):
            report = prepare(model, (ids,)) if merged else None
            run = compiled(model)
            assert_close(run(ids, use_cache=False).logits, model(ids, use_cache=False).logits)
            assert len(run.graphs) == 1
            counts.append(run.gemms)
    assert report is not None
    assert counts[0] - counts[1] == report.gemms_saved == sum(len(group) - 1 for group in expected(name))


def test_save_pretrained_and_reload(tmp_path: Path) -> None:
    model, ids = build("qwen3"), torch.randint(0, 128, (2, 7))
    with torch.no_grad():
        prepare(model, (ids,))
        model.model.layers[0].self_attn.k_proj.weight.add_(0.5)
        model.save_pretrained(tmp_path)
        plain = build("qwen3")
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(tmp_path / "plain")
        sizes = [(folder / "model.safetensors").stat().st_size for folder in (tmp_path, tmp_path / "plain")]
        assert sizes[0] == sizes[1]
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)
        assert prepare(loaded, (ids,)).merged == prepare(model, (ids,)).merged
        assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_generation_and_moves_keep_working() -> None:
    model, ids = build("qwen3"), torch.randint(0, 128, (2, 5))
    expected_tokens = model.generate(ids, max_new_tokens=4, do_sample=False)
    with torch.no_grad():
        prepare(model, (ids,))
    assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), expected_tokens)
    model.to(torch.bfloat16)
    assert all(group.is_true for group in packed_groups(model))
    model.resize_token_embeddings(130)
    assert all(group.is_true for group in packed_groups(model))
