"""What vLLM writes before its passes: the spellings of one operation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from graphs import E4M3
from torch import Tensor

LIMIT = 448.0
#: The smallest scale a token.
SMALLEST = 1.0 / (LIMIT * 512.0)

Norm = Callable[..., Tensor]


def ir_norm(x: Tensor, w: Tensor | None, eps: float) -> Tensor:
    result: Tensor = torch.ops.vllm_ir.rms_norm(x, w, eps)
    return result


def ir_add_norm(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    normed, total = torch.ops.vllm_ir.fused_add_rms_norm(x, residual, w, eps)
    return normed, total


def custom_norm(x: Tensor, w: Tensor | None, eps: float) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    torch.ops._C.rms_norm(out, x, w, eps)
    return out


def custom_add_norm(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    torch.ops._C.fused_add_rms_norm(x, residual, w, eps)
    return x, residual


def native_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    h = x.float()
    return ((h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(w.dtype) * w).to(x.dtype)


def native_add_norm(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h = x.float() + residual.float()
    total = h.to(x.dtype)
    return ((h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(w.dtype) * w).to(x.dtype), total


NORMS = {
    "ir": (ir_norm, ir_add_norm),
    "custom": (custom_norm, custom_add_norm),
    "native": (native_norm, native_add_norm),
}

#: Codes and scales of ``x``; a scale that is given is passed on.
Quantize = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def custom_static(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=E4M3)
    torch.ops._C.static_scaled_fp8_quant(out, x, scale, None)
    return out, scale


def native_static(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return (x.float() * scale.reciprocal()).clamp(-LIMIT, LIMIT).to(E4M3), scale


def custom_token(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = torch.empty(x.shape, dtype=E4M3), torch.empty(x.shape[0], 1)
    torch.ops._C.dynamic_per_token_scaled_fp8_quant(out, x, scale, None)
    return out, scale


def native_token(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    largest = x.abs().max(dim=-1)[0].unsqueeze(-1).float()
    scale = (largest / LIMIT).clamp(min=SMALLEST)
    return (x.float() * scale.reciprocal()).clamp(-LIMIT, LIMIT).to(E4M3), scale


def custom_group(group: int, ue8m0: bool = False) -> Quantize:
    def quantize(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        out, scales = torch.empty(x.shape, dtype=E4M3), torch.empty(x.shape[0], x.shape[1] // group)
        how = (group, 1e-10, -LIMIT, LIMIT, ue8m0, False, False)
        torch.ops._C.per_token_group_fp8_quant(x, out, scales, *how)
        return out, scales

    return quantize


QUANTS: dict[str, Quantize] = {
    "static": custom_static,
    "native static": native_static,
    "token": custom_token,
    "native token": native_token,
    "group 128": custom_group(128),
    "group 64": custom_group(64),
}


def scaled_mm(codes: Tensor, scales: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """The opaque GEMM of a linear layer in fp8."""
    out = torch.empty(codes.shape[0], w.shape[1], dtype=dtype)
    torch.ops._C.cutlass_scaled_mm(out, codes, w, scales, torch.ones(1))
    return out
