"""New nodes that take the place of old ones."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument


def put_before(node: fx.Node, target: OpOverload, args: tuple[Argument, ...]) -> fx.Node:
    """A call just before ``node`` with its metadata: the same value, spelled differently."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, args)
    new.meta = dict(node.meta)
    return new
