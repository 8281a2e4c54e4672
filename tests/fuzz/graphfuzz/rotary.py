"""Rotary embeddings in many spellings, and what only looks like one."""

from __future__ import annotations

import torch

from graphfuzz.disguise import disguise
from graphfuzz.draft import Draft
from graphfuzz.program import Value


def rope(d: Draft, x: Value) -> Value:
    """A rotation of an even part of the last dimension of ``x``, which is at least 2 wide."""
    part = x.width // 2 * 2 if d.chance(0.6) else 2 * d.rng.randint(1, x.width // 2)
    before = d.rng.randint(0, x.width - part) if d.chance(0.3) else 0
    after = x.width - part - before
    rotary = _cut(d, x, before, part)
    turned = _turn(d, rotary, d.chance(0.15))
    d.meant["rope"] += 1
    return _join(d, x, turned, before, after)


def nearly_rope(d: Draft, x: Value) -> Value:
    """What looks like a rotation and is none."""
    part = x.width // 2 * 2
    rotary, half = _cut(d, x, 0, part), part // 2
    cos, sin = _table(d, rotary, part)
    a, b = f"{{0}}[..., :{half}]", f"{{0}}[..., {half}:]"
    wrong = (
        f"{{0}} * {{1}} + torch.cat([{b}, {a}], -1) * {{2}}",
        f"{{0}} * {{1}} + torch.cat([-{b}, -{a}], -1) * {{2}}",
        f"{{0}} * {{1}} + torch.cat([-{a}, {b}], -1) * {{2}}",
        f"{{0}} * {{1}} * torch.cat([-{b}, {a}], -1) * {{2}}",
        f"torch.cat([{a} * {{1}}[..., :{half}] + {b} * {{2}}[..., :{half}], "
        f"{b} * {{1}}[..., :{half}] + {a} * {{2}}[..., :{half}]], -1)",
    )
    turned = d.do(d.one(*wrong), rotary, cos, sin)
    return _join(d, x, _as(d, turned, x), 0, x.width - part)


def _cut(d: Draft, x: Value, before: int, part: int) -> Value:
    if part == x.width:
        return x
    if d.chance(0.3):
        sizes = [s for s in (before, part, x.width - before - part) if s]
        return d.parts(f"{{0}}.split({sizes}, -1)", x)[1 if before else 0]
    return d.do(f"{{0}}[..., {before}:{before + part}]", x)


def _join(d: Draft, x: Value, turned: Value, before: int, after: int) -> Value:
    turned = _as(d, turned, x)
    if not before and not after:
        return turned
    parts = [f"{{0}}[..., :{before}]"] * bool(before) + ["{1}"]
    parts += [f"{{0}}[..., {x.width - after}:]"] * bool(after)
    return d.do(f"torch.cat([{', '.join(parts)}], -1)", x, turned)


def _as(d: Draft, turned: Value, x: Value) -> Value:
    return turned if turned.dtype == x.dtype else d.do(f"{{0}}.to({x.dtype})", turned)


def _turn(d: Draft, x: Value, inverse: bool) -> Value:
    kind = d.one("rotated", "rotated", "halves", "pairs", "deinterleaved")
    if kind == "rotated":
        return _rotated(d, x, inverse)
    table = _table(d, x, x.width // 2)
    if kind == "halves":
        first, second = d.parts(d.one("{0}.chunk(2, -1)", f"{{0}}.split({x.width // 2}, -1)"), x)
    else:
        first, second = d.do("{0}[..., ::2]", x), d.do("{0}[..., 1::2]", x)
    minus, plus = ("+", "-") if inverse else ("-", "+")
    a = d.do(f"{{0}} * {{2}} {minus} {{1}} * {{3}}", first, second, *table)
    b = d.do(f"{{1}} * {{2}} {plus} {{0}} * {{3}}", first, second, *table)
    if kind == "pairs":
        joined = d.one(
            "torch.stack([{0}, {1}], -1).flatten(-2)", "torch.stack(({0}, {1}), dim=-1).reshape({2}.shape)"
        )
        return d.do(joined, a, b, x)
    return d.do("torch.cat([{0}, {1}], -1)", a, b)


def _rotated(d: Draft, x: Value, inverse: bool) -> Value:
    """``x cos + rotate(x) sin``, neox or interleaved."""
    if d.chance(0.35):
        cos, sin = (d.do("{0}.repeat_interleave(2, -1)", t) for t in _table(d, x, x.width // 2))
        form = d.one("torch.stack([-{1}, {0}], -1).flatten(-2)", "torch.stack((-{1}, {0}), -1).flatten(-2)")
        first, second = d.do("{0}[..., ::2]", x), d.do("{0}[..., 1::2]", x)
        rotated = d.do(form, first, second)
    else:
        cos, sin = _table(d, x, x.width)
        if d.chance(0.3):
            cos, sin = (d.do(f"torch.cat([{{0}}[..., :{x.width // 2}]] * 2, -1)", t) for t in (cos, sin))
        half = x.width // 2
        if d.chance(0.5):
            first, second = d.parts("{0}.chunk(2, dim=-1)", x)
        else:
            first, second = d.do(f"{{0}}[..., :{half}]", x), d.do(f"{{0}}[..., {half}:]", x)
        rotated = d.do(d.one("torch.cat([-{1}, {0}], -1)", "torch.cat((-{1}, {0}), dim=-1)"), first, second)
    sign = "-" if inverse else "+"
    form = d.one(f"{{0}} * {{1}} {sign} {{2}} * {{3}}", f"{{1}} * {{0}} {sign} {{3}} * {{2}}")
    return d.do(form, disguise(d, x, 0.05), cos, disguise(d, rotated, 0.1), sin)


def _table(d: Draft, x: Value, width: int) -> tuple[Value, Value]:
    """Cosines and sines that broadcast against ``x``, from positions and frequencies or as they come."""
    rows = [1 if d.chance(0.3) else s for s in x.shape[:-1]]
    if len(rows) > 1 and d.chance(0.6):
        rows[-1] = 1  # shared by heads
    dtype = d.rng.choice(["torch.float32", str(x.dtype)])
    if d.chance(0.3):
        positions = d.input((*rows, 1), torch.float32, "(100 * r({0})).abs().floor()")
        frequencies = d.input((width,), torch.float32, "r({0}).abs()")
        angles = d.do("{0} * {1}", positions, frequencies)
        return d.do(f"{{0}}.cos().to({dtype})", angles), d.do(f"{{0}}.sin().to({dtype})", angles)
    kind = torch.float32 if dtype == "torch.float32" else x.dtype
    return d.input((*rows, width), kind), d.input((*rows, width), kind)
