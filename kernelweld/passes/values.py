"""The fake values of nodes, computed anew where what they read has other strides than before."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx.node import map_arg

from kernelweld.patterns.aliasing import VIEWS
from kernelweld.patterns.dims import same_shape


def fake(node: fx.Node, beside: object = None) -> object:
    """What ``node`` gives for the values of its operands, faked as these or ``beside``. Adds no guard."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    with _faking((args, beside)):
        return node.target(*args, **kwargs)  # type: ignore[operator]


def fresh(values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Fake tensors like ``values`` in memory of their own."""
    with _faking(values):
        return tuple(torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values)


@contextmanager
def _faking(values: object) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        mode = detect_fake_mode(values)
        if mode is not None:
            stack.enter_context(mode)
            if mode.shape_env is not None:
                stack.enter_context(mode.shape_env.suppress_guards())
        yield


def refresh(changed: Iterable[tuple[fx.Node, object]]) -> None:
    """Gives the values that depend on ``changed`` the strides and the memory that they have now.

    ``changed`` are nodes, each with the value that its users knew. Views share the memory of what they read;
    other operators are run again only where what they read has other strides than it had. Stops at operators
    that write.
    """
    pending = list(changed)
    while pending:
        node, known = pending.pop()
        moved = not _same(node.meta["val"], known)
        for user in node.users:
            if (moved or user.target in VIEWS) and _is_pure(user):
                before, user.meta["val"] = user.meta["val"], fake(user)
                pending.append((user, before))


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
