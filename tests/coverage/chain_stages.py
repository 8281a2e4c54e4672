"""The first links of a chain: norms and gates, then rotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
bf16 = torch.bfloat16
EPS = 1e-6


@dataclass(frozen=True)
class Stage:
    """One link of a chain: ``apply(x, *extra(x))``, and the kinds of words that it becomes."""

    apply: Callable[..., object]
    words: tuple[str, ...]
    extra: Callable[[tuple[int, ...]], Inputs] = lambda shape: ()


def _vector(shape: tuple[int, ...]) -> Inputs:
    return (torch.rand(shape[-1]).to(bf16) + 0.5,)


def _vectors(shape: tuple[int, ...]) -> Inputs:
    return (*_vector(shape), torch.randn(shape[-1]).to(bf16))


def _wide_vector(shape: tuple[int, ...]) -> Inputs:
    return (torch.randn(shape[-1]) * 0.1,)


def same(shape: tuple[int, ...]) -> Inputs:
    return (torch.randn(shape).to(bf16),)


def _vector_and_same(shape: tuple[int, ...]) -> Inputs:
    return (*_vector(shape), *same(shape))


def _unit(x: Tensor) -> Tensor:
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)


def _add_norm(x: Tensor, w: Tensor, residual: Tensor) -> Tensor:
    return _unit(x + residual).to(bf16) * w


def _gate_first(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
    h = x.float() * F.silu(gate.float())
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * w.float()).to(bf16)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, EPS)


def _l2(x: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + EPS)).to(bf16)


#: Normalisations, and gated products in their place.
NORMS: Mapping[str, Stage] = MappingProxyType(
    {
        "rms": Stage(lambda x: _unit(x).to(bf16), ("rms_norm",)),
        "rms, round, w": Stage(lambda x, w: _unit(x).to(bf16) * w, ("rms_norm",), _vector),
        "rms, w, round": Stage(lambda x, w: (_unit(x) * w.float()).to(bf16), ("rms_norm",), _vector),
        "rms, 1 + w": Stage(lambda x, w: (_unit(x) * (1.0 + w)).to(bf16), ("rms_norm",), _wide_vector),
        "rms, w, silu gate": Stage(
            lambda x, w, g: (w * _unit(x).to(bf16) * F.silu(g.float())).to(bf16),
            ("rms_norm",),
            _vector_and_same,
        ),
        "silu gate, rms, w": Stage(_gate_first, ("rms_norm",), _vector_and_same),
        "add, rms, w": Stage(_add_norm, ("residual_add", "rms_norm"), _vector_and_same),
        "layer norm": Stage(_layer_norm, ("layer_norm",), _vectors),
        "l2": Stage(_l2, ("l2_norm",)),
        "silu gate": Stage(lambda x, g: F.silu(g) * x, ("gate_mul",), same),
        "sigmoid gate": Stage(lambda x, g: x * torch.sigmoid(g), ("gate_mul",), same),
    }
)


def _tables(width: int) -> Callable[[tuple[int, ...]], Inputs]:
    def make(shape: tuple[int, ...]) -> Inputs:
        angle = torch.arange(shape[0])[:, None] / 10000 ** (torch.arange(width // 2) / (width // 2))
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(bf16)[:, None], angle.sin().to(bf16)[:, None]

    return make


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _neox(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + _rotated(x) * sin


def _partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    return torch.cat([_neox(x[..., :width], cos, sin), x[..., width:]], -1)


def _behind(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    return torch.cat([x[..., :-width], _neox(x[..., -width:], cos, sin)], -1)


def _interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.stack([-odd, even], -1).flatten(-2)
    return x * cos.chunk(2, -1)[0].repeat_interleave(2, -1) + turned * sin.chunk(2, -1)[0].repeat_interleave(
        2, -1
    )


WIDTH = 128

#: Rotations of values ``[tokens, heads, WIDTH]``.
ROPES: Mapping[str, Stage] = MappingProxyType(
    {
        "no rope": Stage(lambda x: x, ()),
        "neox": Stage(_neox, ("rope",), _tables(WIDTH)),
        "neox, first half": Stage(_partial, ("rope",), _tables(WIDTH // 2)),
        "neox, last half": Stage(_behind, ("rope",), _tables(WIDTH // 2)),
        "interleaved": Stage(_interleaved, ("rope",), _tables(WIDTH)),
    }
)
