"""Where a value of a weld is written: at once into the layout that a copy behind it would give it."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

aten = torch.ops.aten

#: Views that keep every axis whole, so that following them refines no axis of a task.
_TURNS = frozenset(
    {
        aten.permute.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    }
)


def landing(node: fx.Node, steps: Collection[fx.Node]) -> fx.Node:
    """The last copy that the only use of ``node`` besides ``steps`` comes to through views; else ``node``.

    Column-major scales, or rotated heads made contiguous for an attention kernel, need no copy of their own.
    """
    found, users = node, [user for user in node.users if user not in steps]
    while len(users) == 1 and users[0].op == "call_function":
        (user,) = users
        if user.target is aten.clone.default:
            found = user
        elif user.target not in _TURNS:
            break
        users = list(user.users)
    return found
