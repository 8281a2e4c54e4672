"""Operators of vLLM that reach beyond their arguments, on a CPU: caches by the name of a layer, other GPUs.

What they did is kept in ``ENGINE``, so that a test sees writes that no graph shows, and their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from vllm_operators import define

_LIBRARIES: list[torch.library.Library] = []


@dataclass
class Engine:
    """What a forward context holds: caches and slots of the layers. ``log`` are the calls, in their order."""

    caches: dict[str, list[Tensor]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def write(self, layer: str, *rows: Tensor) -> None:
        """One row a token to caches of the layer, from slot 0 on."""
        self.log.append(f"write {layer}")
        self.caches[layer] = [x.clone() for x in rows]

    def reset(self) -> None:
        self.caches.clear()
        self.log.clear()


ENGINE = Engine()


def unified_kv_cache_update(key: Tensor, value: Tensor, layer_name: str) -> Tensor:
    ENGINE.write(layer_name, key, value)
    return key.new_empty(0)


def unified_mla_kv_cache_update(
    kv_c_normed: Tensor, k_pe: Tensor, layer_name: str, kv_cache_dtype: str, k_scale: Tensor
) -> Tensor:
    ENGINE.write(layer_name, kv_c_normed, k_pe)
    return kv_c_normed.new_empty(0)


def unified_attention_with_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    layer_name: str,
    output_scale: Tensor | None = None,
    output_block_scale: Tensor | None = None,
    kv_cache_dummy_dep: Tensor | None = None,
) -> None:
    """Reads what the cache of its layer holds at this moment."""
    ENGINE.log.append(f"attend {layer_name}")
    cached = ENGINE.caches[layer_name]
    output.copy_((query.float() + sum(float(x.float().mean()) for x in cached)).reshape(output.shape))


def unified_mla_attention_with_output(
    q: Tensor,
    kv_c_normed: Tensor,
    k_pe: Tensor,
    output: Tensor,
    layer_name: str,
    output_scale: Tensor | None = None,
    output_block_scale: Tensor | None = None,
    kv_cache_dummy_dep: Tensor | None = None,
) -> None:
    ENGINE.log.append(f"attend {layer_name}")
    cached = sum(float(x.float().mean()) for x in ENGINE.caches[layer_name])
    output.copy_((q.float().flatten(1)[:, : output.shape[1]] + cached).reshape(output.shape))


def all_reduce(tensor: Tensor, group_name: str) -> Tensor:
    """As if another GPU held the same."""
    ENGINE.log.append(f"all_reduce {group_name}")
    return tensor + tensor


def flashinfer_rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    torch.ops._C.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)


def gdn_attention_core(mixed_qkv: Tensor, core_attn_out: Tensor, layer_name: str) -> None:
    """A linear attention: its state is found by the layer's name."""
    ENGINE.log.append(f"recur {layer_name}")
    core_attn_out.copy_(mixed_qkv[:, : core_attn_out.shape[1]])


def flashinfer_trtllm_fused_allreduce_norm(
    allreduce_in: Tensor,
    residual: Tensor,
    rms_gamma: Tensor,
    rms_eps: float,
    world_size: int,
    norm_out: Tensor | None = None,
    quant_out: Tensor | None = None,
    scale_out: Tensor | None = None,
) -> None:
    """As vLLM's own pass leaves it: without ``norm_out`` the norm takes the place of the summand."""
    ENGINE.log.append("fused all_reduce")
    total = allreduce_in * 2 + residual
    h = total.float()
    normed = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + rms_eps)).to(total.dtype) * rms_gamma
    residual.copy_(total)
    (allreduce_in if norm_out is None else norm_out).copy_(normed)


def fused_rope_unified_mla_kv_cache_update(
    q_pe: Tensor, k_pe: Tensor, kv_c: Tensor, positions: Tensor, cos_sin_cache: Tensor, layer_name: str
) -> Tensor:
    ENGINE.write(layer_name, kv_c, k_pe)
    q_pe.mul_(2)
    k_pe.mul_(2)
    return kv_c.new_empty(0)


def fused_qk_norm_rope(
    qkv: Tensor, num_heads_q: int, num_heads_k: int, num_heads_v: int, head_dim: int, eps: float
) -> None:
    heads = qkv.view(qkv.shape[0], -1, head_dim)[:, : num_heads_q + num_heads_k]
    h = heads.float()
    heads.copy_(h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps))


def cutlass_scaled_mm(
    out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None
) -> None:
    scales = a_scales.reshape(a_scales.shape[0] if a_scales.dim() > 1 else 1, -1)
    scales = scales.repeat_interleave(a.shape[1] // scales.shape[1], 1)
    out.copy_((a.float() * scales) @ (b.float() * b_scales.float()))


def minimax_allreduce_rms_qk(qkv: Tensor, weight: Tensor, workspace: Tensor) -> Tensor:
    """A collective among the kernels."""
    ENGINE.log.append("all_reduce of squares")
    return qkv * weight


_ATTENTION = "Tensor? output_scale=None, Tensor!? output_block_scale=None, Tensor? kv_cache_dummy_dep=None"
_LAYER = "str layer_name"

SCHEMAS = {
    f"vllm::unified_kv_cache_update(Tensor key, Tensor value, {_LAYER}) -> Tensor": unified_kv_cache_update,
    f"vllm::unified_mla_kv_cache_update(Tensor kv_c_normed, Tensor k_pe, {_LAYER}, str kv_cache_dtype, "
    "Tensor k_scale) -> Tensor": unified_mla_kv_cache_update,
    f"vllm::unified_attention_with_output(Tensor query, Tensor key, Tensor value, Tensor! output, {_LAYER}, "
    f"{_ATTENTION}) -> ()": unified_attention_with_output,
    f"vllm::unified_mla_attention_with_output(Tensor q, Tensor kv_c_normed, Tensor k_pe, Tensor! output, "
    f"{_LAYER}, {_ATTENTION}) -> ()": unified_mla_attention_with_output,
    "vllm::all_reduce(Tensor tensor, str group_name) -> Tensor": all_reduce,
    "vllm::flashinfer_rotary_embedding(Tensor positions, Tensor! query, Tensor! key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox) -> ()": flashinfer_rotary_embedding,
    f"vllm::gdn_attention_core(Tensor mixed_qkv, Tensor! core_attn_out, {_LAYER}) -> ()": gdn_attention_core,
    "vllm::flashinfer_trtllm_fused_allreduce_norm(Tensor! allreduce_in, Tensor! residual, Tensor rms_gamma, "
    "float rms_eps, int world_size, Tensor!? norm_out=None, Tensor!? quant_out=None, "
    "Tensor!? scale_out=None) -> ()": flashinfer_trtllm_fused_allreduce_norm,
    "vllm::fused_rope_unified_mla_kv_cache_update(Tensor! q_pe, Tensor! k_pe, Tensor kv_c, Tensor positions, "
    f"Tensor cos_sin_cache, {_LAYER}) -> Tensor": fused_rope_unified_mla_kv_cache_update,
    "_C::fused_qk_norm_rope(Tensor! qkv, int num_heads_q, int num_heads_k, int num_heads_v, int head_dim, "
    "float eps) -> ()": fused_qk_norm_rope,
    "_C::cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, "
    "Tensor? bias=None) -> ()": cutlass_scaled_mm,
    "_C::minimax_allreduce_rms_qk(Tensor qkv, Tensor weight, Tensor workspace) -> Tensor": (
        minimax_allreduce_rms_qk
    ),
}


def _fake(schema: str) -> object:
    if schema.endswith("-> ()"):
        return lambda *args, **kwargs: None
    if "all" in schema.partition("(")[0]:
        return lambda x, *args: torch.empty_like(x)
    return lambda *args, **kwargs: args[0].new_empty(0)


def define_engine() -> None:
    """Defines the operators, once a process, beside those of the dialect's tests."""
    define()
    if _LIBRARIES:
        return
    for schema, reference in SCHEMAS.items():
        namespace, _, rest = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        _LIBRARIES.append(library)
        name = rest.partition("(")[0]
        library.define(rest)
        library.impl(name, reference, "CPU")
        torch.library.register_fake(f"{namespace}::{name}", _fake(schema), lib=library)
