"""The fake values of nodes, computed anew where what they read has other strides than before."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx.node import map_arg

from kernelweld.patterns.aliasing import VIEWS
from kernelweld.patterns.dims import same_shape


def fake(node: fx.Node) -> object:
    """What ``node`` gives for the values of its operands. Adds no guard."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        mode = detect_fake_mode(args)
        if mode is not None:
            stack.enter_context(mode)
            if mode.shape_env is not None:
                stack.enter_context(mode.shape_env.suppress_guards())
        return node.target(*args, **kwargs)  # type: ignore[operator]


def refresh(changed: Iterable[fx.Node]) -> None:
    """Gives the values that depend on ``changed`` the strides and the memory that they have now. Stops at
    operators whose results are laid out as before, and at those that write.
    """
    pending = list(changed)
    while pending:
        for user in list(pending.pop().users):
            if not _is_pure(user):
                continue
            value = fake(user)
            if user.target in VIEWS or not _same(value, user.meta["val"]):  # a view also shares new memory
                user.meta["val"] = value
                pending.append(user)


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    return isinstance(target, OpOverload) and not target._schema.is_mutable


def _same(a: object, b: object) -> bool:
    """Whether two values have the same strides and offset, for every value of their symbols."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return same_shape(a.stride(), b.stride()) and same_shape([a.storage_offset()], [b.storage_offset()])
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return all(map(_same, a, b))
    return True
