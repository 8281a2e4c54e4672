"""Chains that serving engines fuse by hand, in plain torch, with their inputs."""

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
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Chain:
    """``function(*inputs(tokens))`` in plain torch; ``moved`` bytes are read and written at least."""

    function: Callable[..., object]
    inputs: Callable[[int], Inputs]
    moved: Callable[[int], int]


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
    caches = [torch.randn(pages, BLOCK, KV_HEADS, D, device=DEVICE).bfloat16() for _ in range(2)]
    qkv = torch.randn(tokens, (2 * HEADS + 2 * KV_HEADS) * D, device=DEVICE).bfloat16()
    weights = [torch.rand(D, device=DEVICE).bfloat16() for _ in range(2)]
    tables = [torch.randn(tokens, ROTARY, device=DEVICE).bfloat16() for _ in range(2)]
    return (*caches, qkv, *weights, *tables, torch.randperm(pages * BLOCK, device=DEVICE)[:tokens])


def rows(*widths: int, weight: int = 0, scale: bool = False) -> Callable[[int], Inputs]:
    """bfloat16 inputs ``[tokens, width]``, a weight, and a float32 scale of one element."""

    def make(tokens: int) -> Inputs:
        tensors = [torch.randn(tokens, width, device=DEVICE).bfloat16() for width in widths]
        weights = [torch.rand(weight, device=DEVICE).bfloat16()] if weight else []
        return (*tensors, *weights, *([torch.full((1,), 0.02, device=DEVICE)] if scale else []))

    return make


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm alone."""
    return rms_norm(x, weight)


def norm_static(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """RMSNorm and codes of a given scale, by its inverse: so vLLM writes it in torch, and in its kernels."""
    normed = rms_norm(x, weight).float() * scale.reciprocal()
    return normed.clamp(-448.0, 448.0).to(E4M3)


def add_norm_static(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Residual add, RMSNorm, codes of a given scale."""
    total = x + residual
    return total, norm_static(total, weight, scale)


def silu_packed(gate_up: Tensor) -> Tensor:
    """Gated product of the halves of one tensor."""
    return silu_apart(*gate_up.chunk(2, -1))


def silu_apart(gate: Tensor, up: Tensor) -> Tensor:
    """Gated product of two tensors."""
    return torch.nn.functional.silu(gate) * up


Q_HEADS, K_HEADS, HEAD, POSITIONS = 32, 8, 128, 4096


def rope_by_position(q: Tensor, k: Tensor, cache: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys turned in halves, in float32; a row of ``cache`` holds cosines, then sines."""
    cos, sin = cache[positions].chunk(2, -1)

    def turned(x: Tensor) -> Tensor:
        first, second = x.unflatten(-1, (-1, HEAD)).float().chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype).flatten(1)

    return turned(q), turned(k)


def rope_by_table(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[tokens, heads, HEAD]`` turned in halves, as transformers writes it."""

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]

    return turned(q), turned(k)


def rope_rows(tokens: int) -> Inputs:
    """Packed heads, a float32 cache of cosines and sines, and positions."""
    q, k = rows(Q_HEADS * HEAD, K_HEADS * HEAD)(tokens)
    angles = torch.rand(POSITIONS, HEAD // 2, device=DEVICE)
    return (
        q,
        k,
        torch.cat((angles.cos(), angles.sin()), -1),
        torch.randint(POSITIONS, (tokens,), device=DEVICE),
    )


def rope_tables(tokens: int) -> Inputs:
    """Heads apart, and bfloat16 tables whose halves are equal."""
    q, k = rows(Q_HEADS * HEAD, K_HEADS * HEAD)(tokens)
    angles = torch.rand(tokens, HEAD // 2, device=DEVICE).repeat(1, 2)
    tables = (angles.cos().bfloat16(), angles.sin().bfloat16())
    return q.unflatten(-1, (-1, HEAD)), k.unflatten(-1, (-1, HEAD)), *tables


H, F = 7168, 2048

ROPE_BYTES = 4 * (Q_HEADS + K_HEADS) * HEAD + 4 * HEAD

CHAINS: Mapping[str, Chain] = MappingProxyType(
    {
        "norm 7168": Chain(norm, rows(H, weight=H), lambda t: 4 * H * t),
        "gemma norm 7168": Chain(gemma_norm, rows(H, weight=H), lambda t: 4 * H * t),
        "add + norm 7168": Chain(add_norm, rows(H, H, weight=H), lambda t: 8 * H * t),
        "norm + static fp8 7168": Chain(norm_static, rows(H, weight=H, scale=True), lambda t: 3 * H * t),
        "add + norm + static fp8 7168": Chain(
            add_norm_static, rows(H, H, weight=H, scale=True), lambda t: 7 * H * t
        ),
        "add + norm + group fp8 7168": Chain(
            add_norm_group, rows(H, H, weight=H), lambda t: (7 * H + H // 32) * t
        ),
        "add + norm + token fp8 7168": Chain(add_norm_token, rows(H, H, weight=H), lambda t: 7 * H * t),
        "norm + token fp8 7168": Chain(norm_token, rows(H, weight=H), lambda t: 3 * H * t),
        "norm + token fp8 1536": Chain(norm_token, rows(1536, weight=1536), lambda t: 4608 * t),
        "silu gate 2048": Chain(silu_packed, rows(2 * F), lambda t: 6 * F * t),
        "silu gate 2048 apart": Chain(silu_apart, rows(F, F), lambda t: 6 * F * t),
        "silu gate + group fp8 2048": Chain(silu_group, rows(2 * F), lambda t: (5 * F + F // 32) * t),
        "rope by position 32+8x128": Chain(rope_by_position, rope_rows, lambda t: (ROPE_BYTES + 8) * t),
        "rope by table 32+8x128": Chain(rope_by_table, rope_tables, lambda t: ROPE_BYTES * t),
        "qk norm + rope + paged kv 16+1x256": Chain(
            qk_norm_rope_kv,
            attention_rows,
            lambda t: (4 * (HEADS + 2 * KV_HEADS) * D + 4 * ROTARY + 8) * t,
        ),
        "group fp8 7168": Chain(group_alone, rows(H), lambda t: (3 * H + H // 32) * t),
    }
)
