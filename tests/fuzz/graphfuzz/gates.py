"""Gates in many spellings, and activations that no gate has."""

from __future__ import annotations

from graphfuzz.draft import Draft
from graphfuzz.program import Value

SILU = (
    "F.silu({0})",
    "F.silu({0}.float()).to({0}.dtype)",
    "{0} * torch.sigmoid({0})",
    "{0} / (1 + torch.exp(-{0}))",
)
SIGMOID = (
    "torch.sigmoid({0})",
    "{0}.sigmoid()",
    "torch.sigmoid({0}.float())",
    "1 / (1 + torch.exp(-{0}.float()))",
)
GELU = (
    "F.gelu({0}, approximate='tanh')",
    "0.5 * {0} * (1 + torch.tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))",
)
NEARLY = (
    "F.gelu({0})",
    "torch.tanh({0})",
    "{0} * torch.sigmoid(1.702 * {0})",
    "F.softplus({0})",
    "{0} / (2 + torch.exp(-{0}))",
)


def gate(d: Draft, x: Value) -> Value:
    """An activation of one tensor times another: two tensors, or parts of one."""
    form = d.rng.choice([*SILU, *SIGMOID, *GELU, *NEARLY])
    act, up = _pair(d, x)
    active = d.do(form, act)
    product = d.do(d.one("{0} * {1}", "{1} * {0}"), active, up)
    return product if product.dtype == x.dtype else d.do(f"{{0}}.to({x.dtype})", product)


def _pair(d: Draft, x: Value) -> tuple[Value, Value]:
    if x.width % 2 or d.chance(0.4):
        other = d.like(x) if d.chance(0.8) else d.input((*x.shape[:-1], 1), x.dtype)
        return (x, other) if d.chance(0.5) and other.width == x.width else (other, x)
    half = x.width // 2
    forms = (
        "{0}.chunk(2, -1)",
        f"{{0}}.split({half}, -1)",
        f"({{0}}[..., :{half}], {{0}}[..., {half}:])",
        "({0}[..., ::2], {0}[..., 1::2])",
        f"{{0}}.unflatten(-1, (2, {half})).unbind(-2)",
    )
    first, second = d.parts(d.one(*forms), x)
    return (first, second) if d.chance(0.8) else (second, first)
