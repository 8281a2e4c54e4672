"""Chains that serving engines fuse by hand, in plain torch, with their inputs and the hand-written peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
E4M3 = torch.float8_e4m3fn
GROUP = 128
EPS = 1e-6


@dataclass(frozen=True)
class Chain:
    """``function(*inputs(tokens))`` in plain torch; ``moved`` bytes are read and written at least."""

    function: Callable[..., object]
    inputs: Callable[[int], Inputs]
    moved: Callable[[int], int]
    vllm: Callable[..., object] | None = None


def codes(x: Tensor, scale: Tensor) -> Tensor:
    return (x.float() / scale).clamp(-448.0, 448.0).to(E4M3)


def per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / 448.0
    return codes(x, scale), scale


def per_group(x: Tensor) -> tuple[Tensor, Tensor]:
    values, scale = per_token(x.unflatten(-1, (-1, GROUP)))
    return values.flatten(-2), scale.squeeze(-1)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)


def add_norm_group(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Residual add, RMSNorm, group-128 codes: the start of every fp8 block of DeepSeek-V3."""
    total = x + residual
    return (total, *per_group(rms_norm(total, weight)))


def add_norm_token(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Residual add, RMSNorm, per-token codes."""
    total = x + residual
    return (total, *per_token(rms_norm(total, weight)))


def norm_token(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """RMSNorm and per-token codes."""
    return per_token(rms_norm(x, weight))


def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Residual add and RMSNorm."""
    total = x + residual
    return total, rms_norm(total, weight)


def silu_group(gate_up: Tensor) -> tuple[Tensor, ...]:
    """Gated product in halves, then group-128 codes: the middle of an fp8 MLP."""
    gate, up = gate_up.chunk(2, -1)
    return per_group(torch.nn.functional.silu(gate) * up)


def group_alone(x: Tensor) -> tuple[Tensor, ...]:
    """Group-128 codes of a value."""
    return per_group(x)


HEADS, KV_HEADS, D, ROTARY, BLOCK = 16, 1, 256, 64, 16


def partial_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first ``ROTARY`` elements of each head turned, in halves."""
    turned, kept = x[..., :ROTARY], x[..., ROTARY:]
    first, second = turned.chunk(2, -1)
    swapped = torch.cat((-second, first), -1)
    return torch.cat((turned * cos[:, None] + swapped * sin[:, None], kept), -1)


def gemma_norm(x: Tensor, weight: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * (1.0 + weight.float())).to(x.dtype)


def qk_norm_rope_kv(
    k_cache: Tensor,
    v_cache: Tensor,
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
) -> Tensor:
    """Qwen3.5's attention up to its caches: queries and their gates side by side, norms a head, rotation,
    keys and values to their pages. The gate is left where it lies, for the product that reads it.
    """
    q, k, v = qkv.split([HEADS * 2 * D, KV_HEADS * D, KV_HEADS * D], -1)
    q = partial_rope(gemma_norm(q.unflatten(-1, (HEADS, 2 * D))[..., :D], q_weight), cos, sin)
    k = partial_rope(gemma_norm(k.unflatten(-1, (KV_HEADS, D)), k_weight), cos, sin)
    k_cache.view(-1, KV_HEADS, D)[slots] = k
    v_cache.view(-1, KV_HEADS, D)[slots] = v.unflatten(-1, (KV_HEADS, D))
    return q


def attention_rows(tokens: int) -> Inputs:
    """Pages of twice as many slots as tokens, and one decode or prefill step of Qwen3.5 on one rank."""
    pages = -(-2 * tokens // BLOCK)
    caches = [torch.randn(pages, BLOCK, KV_HEADS, D, device="cuda").bfloat16() for _ in range(2)]
    qkv = torch.randn(tokens, (2 * HEADS + 2 * KV_HEADS) * D, device="cuda").bfloat16()
    weights = [torch.rand(D, device="cuda").bfloat16() for _ in range(2)]
    tables = [torch.randn(tokens, ROTARY, device="cuda").bfloat16() for _ in range(2)]
    return (*caches, qkv, *weights, *tables, torch.randperm(pages * BLOCK, device="cuda")[:tokens])


def rows(*widths: int, weight: int = 0) -> Callable[[int], Inputs]:
    """bfloat16 inputs ``[tokens, width]``, and a weight."""

    def make(tokens: int) -> Inputs:
        tensors = [torch.randn(tokens, width, device="cuda").bfloat16() for width in widths]
        return (*tensors, *([torch.rand(weight, device="cuda").bfloat16()] if weight else []))

    return make


def _vllm_per_block(x: Tensor, residual: Tensor, weight: Tensor) -> object:
    out = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scale = torch.empty(x.shape[0], x.shape[1] // GROUP, device=x.device)
    torch.ops._C.rms_norm_per_block_quant(out, x, weight, scale, EPS, None, residual, GROUP, False)
    return out, scale


def _vllm_add_token(x: Tensor, residual: Tensor, weight: Tensor) -> object:
    return _vllm_token(x, weight, residual)


def _vllm_token(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> object:
    out = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scale = torch.empty(x.shape[0], 1, device=x.device)
    torch.ops._C.rms_norm_dynamic_per_token_quant(out, x, weight, scale, EPS, None, residual)
    return out, scale


def _vllm_silu_group(gate_up: Tensor) -> object:
    width = gate_up.shape[1] // 2
    out = torch.empty(gate_up.shape[0], width, dtype=E4M3, device=gate_up.device)
    scale = torch.empty(gate_up.shape[0], width // GROUP, device=gate_up.device)
    torch.ops._C.silu_and_mul_per_block_quant(out, gate_up, scale, GROUP, None, False)
    return out, scale


def _vllm_group(x: Tensor) -> object:
    out = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scale = torch.empty(x.shape[0], x.shape[1] // GROUP, device=x.device)
    torch.ops._C.per_token_group_fp8_quant(x, out, scale, GROUP, 1e-10, -448.0, 448.0, False, False, False)
    return out, scale


def _vllm_add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> object:
    torch.ops._C.fused_add_rms_norm(x, residual, weight, EPS)
    return x, residual


H, F = 7168, 2048

CHAINS: Mapping[str, Chain] = MappingProxyType(
    {
        "add + norm 7168": Chain(add_norm, rows(H, H, weight=H), lambda t: 8 * H * t, _vllm_add_norm),
        "add + norm + group fp8 7168": Chain(
            add_norm_group, rows(H, H, weight=H), lambda t: (7 * H + H // 32) * t, _vllm_per_block
        ),
        "add + norm + token fp8 7168": Chain(
            add_norm_token, rows(H, H, weight=H), lambda t: 7 * H * t, _vllm_add_token
        ),
        "norm + token fp8 7168": Chain(norm_token, rows(H, weight=H), lambda t: 3 * H * t, _vllm_token),
        "norm + token fp8 1536": Chain(norm_token, rows(1536, weight=1536), lambda t: 4608 * t, _vllm_token),
        "silu gate + group fp8 2048": Chain(
            silu_group, rows(2 * F), lambda t: (5 * F + F // 32) * t, _vllm_silu_group
        ),
        "qk norm + rope + paged kv 16+1x256": Chain(
            qk_norm_rope_kv,
            attention_rows,
            lambda t: (4 * (HEADS + 2 * KV_HEADS) * D + 4 * ROTARY + 8) * t,
        ),
        "group fp8 7168": Chain(group_alone, rows(H), lambda t: (3 * H + H // 32) * t, _vllm_group),
    }
)
