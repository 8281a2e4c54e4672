"""The operators that readings ask for, by role, and typed access to a node's value and arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import fx
from torch._ops import OpOverload

aten = torch.ops.aten

#: One size of a shape: a number, or a symbol.
Size = int | torch.SymInt

CAST: OpOverload = torch.ops.prims.convert_element_type.default
CLONE: OpOverload = aten.clone.default
ADD = (aten.add.Tensor, aten.add.Scalar)
SUB = (aten.sub.Tensor, aten.sub.Scalar)
MUL = (aten.mul.Tensor, aten.mul.Scalar)
DIV = (aten.div.Tensor, aten.div.Scalar)
POW: OpOverload = aten.pow.Tensor_Scalar
MEAN: OpOverload = aten.mean.dim
SUM: OpOverload = aten.sum.dim_IntList
RESHAPE = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
EXPAND: OpOverload = aten.expand.default
UNSQUEEZE: OpOverload = aten.unsqueeze.default
SQUEEZE = (aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
SLICE: OpOverload = aten.slice.Tensor
SELECT: OpOverload = aten.select.int
CAT: OpOverload = aten.cat.default

#: What a word may read and compute in; its arithmetic is float32 throughout.
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)


def is_call(node: object, *targets: OpOverload) -> TypeGuard[fx.Node]:
    """Whether ``node`` is a call of one of ``targets``."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def is_getitem(node: object, index: int | None = None) -> TypeGuard[fx.Node]:
    """Whether ``node`` takes one result (the one at ``index``, if given) of a call with several."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem:
        return False
    return index is None or bool(node.args[1] == index)


def value_of(node: fx.Node) -> torch.Tensor | None:
    """The fake tensor a node stands for; None for tuples, numbers and nodes without metadata."""
    val = node.meta.get("val")
    return val if isinstance(val, torch.Tensor) else None


def dtype_of(node: fx.Node) -> torch.dtype | None:
    """The dtype of a node's tensor, or None."""
    val = value_of(node)
    return None if val is None else val.dtype


def shape_of(node: fx.Node) -> tuple[Size, ...]:
    """The sizes (integers or symbols) of a node's tensor; empty if it is none."""
    val = value_of(node)
    return () if val is None else tuple(val.shape)


def argument(node: fx.Node, index: int, name: str, default: object = None) -> object:
    """The argument of a call, given by position or by name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def operands(node: fx.Node) -> tuple[object, object] | None:
    """Both operands of a binary call without ``alpha`` or rounding mode."""
    return (node.args[0], node.args[1]) if len(node.args) == 2 and not node.kwargs else None


def other_operand(node: fx.Node, one: fx.Node) -> object:
    """The operand of a binary call that is not ``one``; ``one`` if both are, None if neither is."""
    pair = operands(node)
    if pair is None or one not in pair:
        return None
    return pair[1] if pair[0] is one else pair[0]


def only_user(node: fx.Node) -> fx.Node | None:
    """The single user of a value, or None if it has several or none."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def dtype_name(dtype: torch.dtype | None) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def shape_text(sizes: Sequence[object]) -> str:
    """``[2, 7, 64]``."""
    return f"[{', '.join(str(s) for s in sizes)}]"
