"""What the nodes of a task are: steps that compute, and which axes of their last dimension each of
them needs whole in a tile.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import fx

from kernelweld.ir import (
    E2M1,
    E4M3,
    E8M0,
    CacheWrite,
    GateMul,
    Pointwise,
    Quant,
    ResidualAdd,
    Rope,
    RopeTable,
    RowReduce,
    step_of,
    word_of,
)
from kernelweld.passes.tasks.derived import is_derived, reduces

aten = torch.ops.aten


class Need(Enum):
    """What a step asks of the last dimension of its operands."""

    NOTHING = "elementwise"
    WHOLE = "reduced over"
    SINGLE = "rearranged"


def is_concat(node: fx.Node) -> bool:
    """Whether ``node`` concatenates along the last dimension."""
    if node.op != "call_function" or node.target is not aten.cat.default:
        return False
    dim = int(node.args[1]) if len(node.args) > 1 else 0  # type: ignore[arg-type]
    rank = node.meta["val"].dim()
    return bool(dim % rank == rank - 1)


def is_feature_slice(node: fx.Node) -> bool:
    """Whether ``node`` slices the last dimension at static bounds."""
    if node.op != "call_function" or node.target is not aten.slice.Tensor:
        return False
    rank = node.meta["val"].dim()
    bounds = node.args[1:]
    return all(isinstance(b, int) for b in bounds) and len(bounds) >= 3 and int(bounds[0]) % rank == rank - 1  # type: ignore[arg-type]


def is_write(node: fx.Node) -> bool:
    """Whether ``node`` writes to a cache."""
    return isinstance(word_of(node), CacheWrite)


def is_step(node: fx.Node) -> bool:
    """Whether a weld can hold ``node`` as work of its own."""
    step = step_of(node)
    return (step is not None and not isinstance(step, RopeTable)) or is_concat(node)


def need_of(node: fx.Node) -> Need:
    """The need of a step. Raises DomainMismatch for a word that no row task computes."""
    if is_derived(node):
        return Need.WHOLE if reduces(node) else Need.NOTHING
    step = step_of(node)  # None: a concatenation
    if isinstance(step, (Pointwise, GateMul, ResidualAdd, Quant, E8M0, E4M3, CacheWrite)):
        return Need.NOTHING
    return Need.SINGLE if step is None or isinstance(step, (Rope, E2M1)) else Need.WHOLE


def operands_of(node: fx.Node) -> tuple[object, ...]:
    """The operands of a step: nodes, numbers, or None for absent ones; parameters that are not
    operands are left out, and so is the tensor that a written cache is a part of.
    """
    step = step_of(node)
    if isinstance(step, CacheWrite):
        return node.args[:4]
    if step is None:
        return tuple(node.args[0])  # type: ignore[arg-type]
    if isinstance(step, RowReduce):
        return node.args[:1]
    if isinstance(step, Pointwise) and step.name == "cast":
        return node.args[:1]
    return node.args
