"""vLLM's ``fused_norm_rope`` and ``fused_q`` in plain torch, by what their arguments mean; the file imports
what vLLM's does, and is loaded as that is.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.triton_utils import tl, triton

E4M3 = torch.float8_e4m3fn
Tensor = torch.Tensor


@triton.jit
def unused(target, block: tl.constexpr):  # noqa: ANN001, ANN201
    tl.store(target + tl.arange(0, block), 0)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def turned_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of neighbours, left where they are."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def turned_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first values turned, as many as there are angles."""
    a, b, rest = x.float().split([cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448).log2().ceil().exp2()
    return (x / scale).to(E4M3), scale


def fused_norm_rope(
    positions: Tensor,
    q_c: Tensor,
    q_weight: Tensor,
    q_eps: float,
    kv_c: Tensor,
    kv_weight: Tensor,
    kv_eps: float,
    k_pe: Tensor,
    table: Tensor,
    index_k: Tensor,
    index_weight: Tensor,
    index_bias: Tensor,
    index_eps: float,
    index_table: Tensor,
    topk: Tensor,
    *,
    slot_mapping: Tensor,
    indexer_k_cache: Tensor,
    mla_kv_cache: Tensor,
    mla_k_scale: Tensor,
) -> Tensor:
    topk.fill_(-1)
    cos, sin = table[positions].float().chunk(2, -1)
    row = torch.cat([normed(kv_c, kv_weight, kv_eps), turned_pairs(k_pe, cos, sin)], -1)
    mla_kv_cache.flatten(0, 1)[slot_mapping] = row.to(mla_kv_cache.dtype)
    cos, sin = index_table[positions].float().chunk(2, -1)
    key = torch.nn.functional.layer_norm(index_k.float(), index_k.shape[-1:], eps=index_eps)
    codes, scales = quantized(turned_halves(key * index_weight.float() + index_bias.float(), cos, sin))
    block = indexer_k_cache.shape[1]
    for slot, code, scale in zip(slot_mapping.tolist(), codes, scales, strict=True):
        page, place = indexer_k_cache[slot // block].view(-1), slot % block
        page[place * code.numel() :][: code.numel()] = code.view(torch.uint8)
        page[block * code.numel() + 4 * place :][:4] = scale.view(torch.uint8)
    return normed(q_c, q_weight, q_eps).to(q_c.dtype)


def fused_q(
    positions: Tensor,
    q_pe: Tensor,
    table: Tensor,
    index_q: Tensor,
    index_table: Tensor,
    ql_nope: Tensor,
    q_scale: Tensor,
    weights: Tensor,
    softmax_scale: float,
    head_scale: float,
    *,
    quantize_mqa: bool,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    cos, sin = (part[:, None] for part in table[positions].float().chunk(2, -1))
    queries = turned_pairs(q_pe, cos, sin).to(q_pe.dtype)
    if quantize_mqa:
        both = torch.cat([ql_nope.float(), turned_pairs(q_pe, cos, sin)], -1)
        queries = (both / q_scale).clamp(-448, 448).to(E4M3)
    cos, sin = (part[:, None] for part in index_table[positions].float().chunk(2, -1))
    codes, scales = quantized(turned_halves(index_q, cos, sin))
    return codes, weights.float() * scales.squeeze(-1) * softmax_scale * head_scale, queries
