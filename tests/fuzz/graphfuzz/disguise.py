"""Detours that leave a value as it is: views there and back, exact casts, parts joined again."""

from __future__ import annotations

from math import prod

import torch

from graphfuzz.draft import Draft
from graphfuzz.program import Value

HALVES = (torch.bfloat16, torch.float16)


def disguise(d: Draft, x: Value, probability: float = 0.25) -> Value:
    """``x``, now and then by one of the detours."""
    if not d.chance(probability):
        return x
    return d.rng.choice(DETOURS)(d, x)


def _flat_and_back(d: Draft, x: Value) -> Value:
    flat = d.do(f"{{0}}.reshape({prod(x.shape[:-1])}, {x.width})", x)
    return d.do(f"{{0}}.{d.one('view', 'reshape')}({list(x.shape)})", flat)


def _extra_dim(d: Draft, x: Value) -> Value:
    dim = d.rng.randrange(-1, len(x.shape))
    wide = d.do(f"{{0}}.unsqueeze({dim})", x)
    return d.do(f"{{0}}.squeeze({dim})", wide)


def _swapped_twice(d: Draft, x: Value) -> Value:
    if len(x.shape) < 2:
        return x
    swapped = d.do("{0}.transpose(0, -1)", x)
    if d.chance(0.3):
        swapped = d.do("{0}.contiguous()", swapped)
    return d.do("{0}.transpose(0, -1)", swapped)


def _copied(d: Draft, x: Value) -> Value:
    return d.do(
        d.one("{0}.clone()", "{0}.contiguous()", "{0}.clone(memory_format=torch.contiguous_format)"), x
    )


def _widened(d: Draft, x: Value) -> Value:
    if x.dtype not in HALVES:
        return d.do(f"{{0}}.to({x.dtype})", x)
    return d.do(f"{{0}}.to({x.dtype})", d.do("{0}.float()", x))


def _expanded(d: Draft, x: Value) -> Value:
    return d.do(f"{{0}}.expand({list(x.shape)})", x)


def _cut_and_joined(d: Draft, x: Value) -> Value:
    if x.width < 2:
        return x
    at = d.rng.randrange(1, x.width)
    if d.chance(0.5):
        return d.do(f"torch.cat([{{0}}[..., :{at}], {{0}}[..., {at}:]], -1)", x)
    return d.do(f"torch.cat({{0}}.split([{at}, {x.width - at}], -1), -1)", x)


def _neutral(d: Draft, x: Value) -> Value:
    return d.do(d.one("{0} * 1.0", "{0} + 0", "{0} - 0", "{0} / 1", "{0}[..., 0:]", "1.0 * {0}"), x)


def _headed(d: Draft, x: Value) -> Value:
    if not x.width:
        return x
    heads = d.rng.choice([h for h in range(1, x.width + 1) if x.width % h == 0])
    return d.do("{0}.flatten(-2)", d.do(f"{{0}}.unflatten(-1, ({heads}, {x.width // heads}))", x))


DETOURS = (
    _flat_and_back,
    _extra_dim,
    _swapped_twice,
    _copied,
    _widened,
    _expanded,
    _cut_and_joined,
    _neutral,
    _headed,
)
