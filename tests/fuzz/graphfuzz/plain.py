"""Sums, reductions, broadcasts and other steps without a name."""

from __future__ import annotations

import torch

from graphfuzz.draft import Draft
from graphfuzz.program import Value


def residual(d: Draft, x: Value) -> Value:
    """``x`` plus another tensor of its shape."""
    other = d.input(x.shape, torch.float32) if d.chance(0.15) else d.like(x)
    total = d.do(d.one("{0} + {1}", "{1} + {0}", "torch.add({0}, {1})"), x, other)
    return total if total.dtype == x.dtype or d.chance(0.5) else d.do(f"{{0}}.to({x.dtype})", total)


def chain(d: Draft, x: Value) -> Value:
    """Elementwise steps that keep values of moderate size."""
    forms = (
        "torch.tanh({0})",
        "-{0}",
        "{0}.abs()",
        "F.relu({0})",
        "torch.exp(-{0}.abs())",
        "torch.sqrt({0}.abs() + 0.5)",
        "torch.log({0} * {0} + 1)",
        "{0} * 0.75",
        "{0} + 1.5",
        "2 - {0}",
        "{0} / 3",
        "1 / ({0}.abs() + 1)",
        "{0}.clamp(-1.5, 1.5)",
        "torch.cos({0})",
        "torch.maximum({0}, -{0} * 0.5)",
        "{0}.float()",
        "torch.rsqrt({0} * {0} + 1)",
        "{0}.to(torch.float16)",
        "{0}.to(torch.bfloat16)",
    )
    for _ in range(d.rng.randint(1, 3)):
        x = d.do(d.one(*forms), x)
    return x


def broadcast(d: Draft, x: Value) -> Value:
    """``x`` with a tensor of fewer rows, a scalar, or fewer or more dimensions."""
    form = d.one("{0} * {1}", "{1} + {0}", "{0} - {1}", "{1} - {0}", "torch.maximum({0}, {1})")
    rows = [s if d.chance(0.4) else 1 for s in x.shape[:-1]]
    shape = d.rng.choice(
        [(), (1,), (x.width,), (*x.shape[:-1], 1), (*rows, x.width), x.shape[1:], (2, *x.shape)]
    )
    return _kept(d, d.do(form, x, d.input(shape, torch.float32 if d.chance(0.2) else x.dtype)), x)


def crossing(d: Draft, x: Value) -> Value:
    """``x`` with another arrangement of itself, or parts of it put together anew."""
    half = x.width // 2
    forms = [
        "{0} + {0}.flip(-1)",
        "{0} * {0}.roll(1, 0)",
        "torch.cat([{0}, {0}], -1)",
        "torch.cat([{0}, {0} * 2], 0)",
        "torch.stack([{0}, -{0}], 0)",
        "torch.stack([{0}, -{0}], -1)",
        "{0} - {0}[:1]",
        "{0} * {0}[..., :1]",
        "{0}.flatten()",
        "torch.cat([{0}[..., 1:], {0}[..., :1]], -1)",
        f"torch.cat([{{0}}[..., {half}:].tanh(), {{0}}[..., :{half}]], -1)",
        f"{{0}}[..., :{half}] * 2 + {{0}}[..., {x.width - half}:]",
    ]
    if len(x.shape) > 1 and x.shape[0] == x.shape[1]:
        forms.append("{0} + {0}.transpose(0, 1)")
    forms = forms if x.width > 1 else forms[:5]
    return d.do(d.one(*forms), x) if x.like.numel() else x


def unusual(d: Draft, x: Value) -> Value:
    """Operators that no weld holds, or that look like others."""
    forms = (
        "torch.where({0} > 0, {0}, {0} * 0.1)",
        "torch.add({0}, {0}, alpha=0.5)",
        "torch.sub({0}, {1}, alpha=2)",
        "torch.addcmul({0}, {0}, {1}, value=0.5)",
        "torch.lerp({0}, {1}, 0.25)",
        "{0}.double().sin()",
        "({0} > {1}).to({0}.dtype) + {0}",
        "torch.cumsum({0} * 0.1, -1)",
        "{0}.sum(0, keepdim=True) * 0.1 + {0}",
        "{0}.mean((0, -1), keepdim=True) + {0}",
        "torch.sigmoid({0}).pow(3)",
        "F.softplus({0}) - F.elu({1})",
        "torch.log_softmax({0}, -1)",
        "torch.tril({0})",
        "{0}.round() + {0}.clamp(max=0.5)",
        "{0} * torch.full((), 0.5)",
    )
    other = d.like(x)
    return _kept(d, d.do(d.one(*forms) if len(x.shape) > 1 else forms[0], x, other), x)


def _kept(d: Draft, y: Value, x: Value) -> Value:
    """``y``, mostly in the dtype of ``x``."""
    return y if y.dtype == x.dtype or d.chance(0.2) else d.do(f"{{0}}.to({x.dtype})", y)


def reduction(d: Draft, x: Value) -> Value:
    """A reduction of the last dimension, back in touch with the row it came from."""
    forms = (
        "{0} - {0}.amax(-1, keepdim=True)",
        "{0} - {0}.mean(-1, keepdim=True)",
        "torch.softmax({0}, -1)",
        "{0} / ({0}.abs().sum(-1, keepdim=True) + 1)",
        "{0} * {0}.amin(-1, keepdim=True)",
        f"{{0}} - {{0}}.sum(-1).unsqueeze(-1) / {x.width}",
        "{0}.mean(-1, keepdim=True) + {0}",
    )
    return d.do(d.one(*forms), x) if x.width else x


def projection(d: Draft, x: Value) -> Value:
    """A matrix product: what is before and what is after can share no launch."""
    width = d.rng.choice([min(x.width, 300), 16, 48])
    weight = d.input((width, x.width), x.dtype, f"r({{0}}) / {x.width} ** 0.5")
    return d.do("F.linear({0}, {1})", x, weight)
