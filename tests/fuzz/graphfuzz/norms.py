"""Norms in many spellings, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphfuzz.disguise import HALVES, disguise
from graphfuzz.draft import Draft
from graphfuzz.program import Value

#: Large ones too: where eps stands must show in the result.
EPS = (1e-6, 1e-5, 1e-3, 0.125, 1.0)


def rms_norm(d: Draft, x: Value) -> Value:
    """An RMSNorm of the last dimension of ``x``."""
    eps = d.rng.choice(EPS)
    d.meant["rms_norm"] += 1
    if d.chance(0.15):
        return _functional_rms_norm(d, x, eps)
    h = widen(d, x)
    gate = d.like(x) if d.chance(0.1) else None
    if gate is not None:
        h = d.do(d.one("{0} * F.silu({1}.float())", "torch.sigmoid({1}.float()) * {0}"), h, gate)
    mean = disguise(d, _mean(d, _squares(d, h)), 0.1)
    normed = _by_root(d, h, _plus(d, mean, eps))
    scaled = _scale(d, normed, x)
    return _rounded(d, scaled, x.dtype) if gate is not None else _gate_after(d, scaled, x)


def layer_norm(d: Draft, x: Value) -> Value:
    """A LayerNorm of the last dimension of ``x``."""
    eps = d.rng.choice(EPS)
    d.meant["layer_norm"] += 1
    weight, bias = (vector(d, x.width, x.dtype) if d.chance(0.7) else None for _ in range(2))
    if d.chance(0.4):
        operands = [v for v in (weight, bias) if v is not None]
        names = iter(range(1, 1 + len(operands)))
        shown = [f"{{{next(names)}}}" if v is not None else "None" for v in (weight, bias)]
        return d.do(f"F.layer_norm({{0}}, ({x.width},), {shown[0]}, {shown[1]}, {eps})", x, *operands)
    h = widen(d, x)
    centred, variance = _moments(d, h)
    y = _maybe_rounded(d, _by_root(d, centred, _plus(d, variance, eps)), x.dtype)
    if weight is not None:
        y = d.do(d.one("{0} * {1}", "{1} * {0}"), y, weight)
    if bias is not None:
        y = d.do(d.one("{0} + {1}", "{1} + {0}"), _maybe_rounded(d, y, x.dtype), bias)
    return _rounded(d, y, x.dtype)


def l2_norm(d: Draft, x: Value) -> Value:
    """A division by the Euclidean norm, in one of the three forms of eps."""
    eps = d.rng.choice(EPS)
    d.meant["l2_norm"] += 1
    if d.chance(0.2):
        return d.do(f"F.normalize({{0}}, dim=-1, eps={eps})", x)
    h = widen(d, x)
    total = d.do(d.one("{0}.sum(-1, keepdim=True)", "{0}.sum(-1).unsqueeze(-1)"), _squares(d, h))
    if d.chance(0.5):
        return _rounded(d, _by_root(d, h, _plus(d, total, eps)), x.dtype)
    norm = _maybe_rounded(d, d.do(d.one("{0}.sqrt()", "{0} ** 0.5", "torch.sqrt({0})"), total), x.dtype)
    form = d.one(f"{{0}} + {eps}", f"{{0}}.clamp_min({eps})", f"{{0}}.clamp(min={eps})")
    return _rounded(d, d.do("{0} / {1}", h, d.do(form, norm)), x.dtype)


def nearly_norm(d: Draft, x: Value) -> Value:
    """What looks like a norm of the last dimension and is none."""
    h = widen(d, x)
    eps = d.rng.choice(EPS)
    makers: tuple[Callable[[], str], ...] = (
        lambda: f"{{0}} * (torch.rsqrt({{0}}.pow(2).mean(-1, keepdim=True)) + {eps})",
        lambda: f"{{0}} / (torch.sqrt({{0}}.pow(2).mean(-1, keepdim=True)) + {eps})",
        lambda: f"{{0}} * torch.rsqrt({{0}}.pow(2).mean(0, keepdim=True) + {eps})",
        lambda: f"{{0}} * torch.rsqrt({{0}}.pow(4).mean(-1, keepdim=True) + {eps})",
        lambda: f"{{0}} * torch.rsqrt({{0}}.abs().mean(-1, keepdim=True) + {eps})",
        lambda: f"{{0}} * torch.rsqrt({{0}}.pow(2).sum(-1, keepdim=True) / {x.width + 1} + {eps})",
        lambda: f"({{0}} + 1) * torch.rsqrt({{0}}.pow(2).mean(-1, keepdim=True) + {eps})",
        lambda: f"{{0}} * torch.sqrt({{0}}.pow(2).mean(-1, keepdim=True) + {eps})",
        lambda: f"{{0}} - torch.rsqrt({{0}}.pow(2).mean(-1, keepdim=True) + {eps})",
        lambda: (
            f"({{0}} - {{0}}.mean(-1, keepdim=True)) / ({{0}}.std(-1, correction=0, keepdim=True) + {eps})"
        ),
        lambda: (
            "({0} + {0}.mean(-1, keepdim=True))"
            f" * torch.rsqrt({{0}}.var(-1, correction=0, keepdim=True) + {eps})"
        ),
    )
    forms = [m for i, m in enumerate(makers) if i != 2 or len(x.shape) > 1]
    return _rounded(d, d.do(d.rng.choice(forms)(), h), x.dtype)


def widen(d: Draft, x: Value) -> Value:
    """``x`` in float32."""
    if x.dtype == torch.float32:
        return x
    return disguise(d, d.do(d.one("{0}.float()", "{0}.to(torch.float32)"), x), 0.05)


def vector(d: Draft, width: int, dtype: torch.dtype) -> Value:
    """A weight of ``width`` values around 1, sometimes in float32 although the model is in half precision."""
    return d.input((width,), torch.float32 if d.chance(0.2) else dtype, "1 + 0.3 * r({0})")


def _functional_rms_norm(d: Draft, x: Value, eps: float) -> Value:
    if d.chance(0.3):
        return d.do(f"F.rms_norm({{0}}, ({x.width},), eps={eps})", x)
    weight = d.input((x.width,), x.dtype, "1 + 0.3 * r({0})")
    return d.do(f"F.rms_norm({{0}}, ({x.width},), {{1}}, {eps})", x, weight)


def _squares(d: Draft, h: Value) -> Value:
    return d.do(d.one("{0}.pow(2)", "{0} * {0}", "{0} ** 2", "{0}.square()", "torch.pow({0}, 2.0)"), h)


def _mean(d: Draft, squares: Value) -> Value:
    n, last = squares.width, len(squares.shape) - 1
    forms = (
        "{0}.mean(-1, keepdim=True)",
        f"{{0}}.mean({last}, keepdim=True)",
        "{0}.mean(-1).unsqueeze(-1)",
        f"{{0}}.sum(-1, keepdim=True) / {n}",
        f"{{0}}.sum(-1, keepdim=True) * (1 / {n})",
        f"{{0}}.sum(-1, keepdim=True).div({n})",
    )
    return d.do(d.one(*forms), squares)


def _plus(d: Draft, mean: Value, eps: float) -> Value:
    forms = (f"{{0}} + {eps}", f"{eps} + {{0}}", f"torch.add({{0}}, {eps})", f"aten.add.Scalar({{0}}, {eps})")
    return d.do(d.one(*forms), mean)


def _by_root(d: Draft, h: Value, radicand: Value) -> Value:
    if d.chance(0.25):
        root = d.do(d.one("torch.sqrt({0})", "{0}.pow(0.5)", "{0} ** 0.5"), radicand)
        return d.do("{0} / {1}", h, disguise(d, root, 0.05))
    forms = (
        "torch.rsqrt({0})",
        "torch.rsqrt({0})",
        "1 / torch.sqrt({0})",
        "{0}.sqrt().reciprocal()",
        "{0} ** -0.5",
    )
    root = d.do(d.one(*forms), radicand)
    if d.chance(0.1):
        root = d.do(f"{{0}}.expand({list(h.shape)})", root)
    return d.do(d.one("{0} * {1}", "{1} * {0}"), h, root)


def _scale(d: Draft, normed: Value, x: Value) -> Value:
    kind = d.one("none", "w", "w", "w", "1+w")
    if kind == "none":
        return normed
    weight = vector(d, x.width, x.dtype)
    if kind == "1+w":
        plus_one = d.do(d.one("1.0 + {0}.float()", "{0}.float() + 1"), weight)
        return d.do(d.one("{0} * {1}", "{1} * {0}"), normed, plus_one)
    if d.chance(0.2):
        weight = d.do("{0}.float()", weight)
    return d.do(d.one("{0} * {1}", "{1} * {0}"), _maybe_rounded(d, normed, x.dtype), weight)


def _gate_after(d: Draft, scaled: Value, x: Value) -> Value:
    if not d.chance(0.15):
        return _rounded(d, scaled, x.dtype)
    gate = d.like(x)
    form = d.one("{0} * F.silu({1}.float())", "F.silu({1}.float()) * {0}", "{0} * torch.sigmoid({1}.float())")
    return _rounded(d, d.do(form, _maybe_rounded(d, scaled, x.dtype), gate), x.dtype)


def _moments(d: Draft, h: Value) -> tuple[Value, Value]:
    """``h`` minus its mean, and its variance."""
    if d.chance(0.3):
        var, mean = d.parts("torch.var_mean({0}, -1, correction=0, keepdim=True)", h)
        return d.do("{0} - {1}", h, mean), var
    centred = d.do("{0} - {1}", h, _mean(d, h))
    if d.chance(0.3):
        return centred, d.do("{0}.var(-1, keepdim=True, unbiased=False)", h)
    return centred, _mean(d, _squares(d, centred))


def _maybe_rounded(d: Draft, x: Value, dtype: torch.dtype) -> Value:
    return _rounded(d, x, dtype) if d.chance(0.5) else x


def _rounded(d: Draft, x: Value, dtype: torch.dtype) -> Value:
    if x.dtype == dtype and dtype not in HALVES:
        return x
    return d.do(d.one(f"{{0}}.to({dtype})", f"{{0}}.to(dtype={dtype})"), x) if x.dtype != dtype else x
