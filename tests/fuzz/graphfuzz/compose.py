"""Composes words, detours and further users to programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch

from graphfuzz.disguise import disguise
from graphfuzz.draft import Draft
from graphfuzz.gates import gate
from graphfuzz.norms import l2_norm, layer_norm, nearly_norm, rms_norm
from graphfuzz.plain import broadcast, chain, crossing, projection, reduction, residual, unusual
from graphfuzz.program import Program, Value
from graphfuzz.rotary import nearly_rope, rope

Step = Callable[[Draft, Value], Value]

DTYPES = (*[torch.bfloat16] * 3, *[torch.float32] * 2, torch.float16)
WIDTHS = (1, 2, 3, 5, 8, 16, 24, 32, 48, 64, 80, 96, 100, 128, 160, 192, 257, 2600)
ROWS = (0, 1, 1, 2, 3, 4, 5, 7)
LAYOUTS = ("dense", "dense", "dense", "cut", "second", "swapped", "rows", "repeated")

STEPS: tuple[tuple[Step, int], ...] = (
    (rms_norm, 8),
    (layer_norm, 3),
    (l2_norm, 3),
    (nearly_norm, 2),
    (rope, 6),
    (nearly_rope, 1),
    (gate, 5),
    (residual, 5),
    (chain, 3),
    (reduction, 2),
    (broadcast, 2),
    (crossing, 2),
    (unusual, 1),
    (projection, 1),
)


def compose(seed: int) -> Program:
    """The program of ``seed``: one to three chains, from one value or from several, that may read from
    each other.
    """
    d = Draft(Random(seed))
    pool, ends = [_start(d)], []
    for _ in range(d.rng.choice([1, 1, 2, 2, 3])):
        x = d.rng.choice(pool) if d.chance(0.7) else _start(d)
        for _ in range(d.rng.choice([1, 1, 2, 2, 3])):
            x = _arranged(d, disguise(d, _step(d, x)))
            pool.append(x)
        ends.append(x)
    outputs = list(dict.fromkeys([*ends, *_further_outputs(d)]))
    return d.program(outputs, _writes(d, outputs) if d.chance(0.1) else ())


def _start(d: Draft) -> Value:
    """A new input, dense or not."""
    rank = d.rng.choice([1, 1, 2, 2, 2, 3])
    *rows, width = [d.rng.choice(ROWS) for _ in range(rank)] + [d.rng.choice(WIDTHS)]
    dtype = d.inputs[0].value.dtype if d.inputs else d.rng.choice(DTYPES)
    match d.rng.choice(LAYOUTS):
        case "cut":
            return d.input([*rows, width + 5], dtype, layout=f"[..., 2:{width + 2}]")
        case "second":
            return d.input([*rows, 2 * width], dtype, layout="[..., ::2]")
        case "swapped":
            return d.input([*rows[:-1], width, rows[-1]], dtype, layout=".transpose(-1, -2)")
        case "rows":
            return d.input([rows[0] + 2, *rows[1:], width], dtype, layout=f"[1:{rows[0] + 1}]")
        case "repeated":
            return d.input([1, *rows[1:], width], dtype, layout=f".expand({[*rows, width]})")
        case _:
            return d.input([*rows, width], dtype)


def _step(d: Draft, x: Value) -> Value:
    steps, weights = zip(*STEPS, strict=True)
    (step,) = d.rng.choices(steps, weights)
    if x.width < 2 and step in (rope, nearly_rope):
        step = rms_norm
    if x.width < 1:
        step = chain
    heads = _heads(x, 2 if step is rope else 1)
    if heads and step in (rms_norm, rope, l2_norm) and d.chance(0.35):
        return _by_heads(d, x, step, d.rng.choice(heads))
    return step(d, x)


def _heads(x: Value, least: int) -> list[int]:
    """Into how many heads, each at least so wide, a row can be cut."""
    return [h for h in range(1, x.width + 1) if x.width % h == 0 and x.width // h >= least]


def _by_heads(d: Draft, x: Value, step: Step, heads: int) -> Value:
    """A step on each head, sometimes with the heads before the rows."""
    shape = [*x.shape[:-1], heads, x.width // heads]
    y = d.do(f"{{0}}.reshape({shape})", x)
    if len(shape) > 2 and d.chance(0.5):
        y = d.do("{0}.transpose(-3, -2)", y)
    y = step(d, disguise(d, y, 0.1))
    return y if d.chance(0.4) else d.do("{0}.flatten(-2)", y)


def _arranged(d: Draft, x: Value) -> Value:
    """Now and then another arrangement, or a part, of ``x``."""
    if d.chance(0.75) or len(x.shape) < 2:
        return x
    forms = ["{0}.transpose(0, 1)", "{0}.flatten(0, 1)", "{0}.unsqueeze(0)", "{0}.flatten(-2)"]
    if x.width > 1:
        forms.append(f"{{0}}[..., :{d.rng.randint(1, x.width - 1)}]")
    if x.shape[0] > 1:
        forms += ["{0}[1:]", "{0}[0]"]
    return d.do(d.one(*forms), x)


def _further_outputs(d: Draft) -> list[Value]:
    """Further users of inner values: outputs, views of outputs, arithmetic on them."""
    inner = [r for line in d.lines for r in line.results]
    outputs: list[Value] = []
    while inner and d.chance(0.4):
        x = d.rng.choice(inner)
        outputs.append(d.do(d.one("{0}", "{0} * 2", "{0}[None]", "{0}.reshape(-1)", "{0}.float() + 1"), x))
    return outputs


def _writes(d: Draft, outputs: Sequence[Value]) -> list[tuple[Value, Value]]:
    """An input that takes a computed value of its kind at the end, as a cache does; no output may lie
    in it.
    """
    targets = [i.value for i in d.inputs if ".expand(" not in i.code]
    found = [
        (target, value)
        for target in targets
        if not any(target.shares(o) for o in outputs)
        for value in (r for line in d.lines for r in line.results)
        if value.shape == target.shape and value.dtype == target.dtype and not value.shares(target)
    ]
    return [d.rng.choice(found)] if found else []
