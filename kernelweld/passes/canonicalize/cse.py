"""Equal pure nodes, found by operator, arguments and the state of the storage they read."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Hashable, Mapping

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.patterns.aliasing import BUFFERS, VIEWS, storage_root, written
from kernelweld.patterns.ops import aten, value_of

_FILLED = frozenset(
    {
        aten.full.default,
        aten.full_like.default,
        aten.new_full.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.ones.default,
        aten.ones_like.default,
        aten.zeros.default,
        aten.zeros_like.default,
    }
)
_NAMESPACES = ("aten", "prims", "kernelweld")


class Seen:
    """The pure nodes met so far in graph order."""

    def __init__(self) -> None:
        self._first: dict[Hashable, fx.Node] = {}
        self._versions: dict[fx.Node, int] = defaultdict(int)

    def first_equal(self, node: fx.Node, storage: Storage) -> fx.Node:
        """The first node that computes what ``node`` does; ``node`` if it is that or must stay apart."""
        for target in written(node):
            self._versions[storage_root(target)] += 1
        if not node.users or not is_pure(node) or storage.is_written(node):
            return node
        key = self._key(node)
        if key is None:
            return node
        first = self._first.setdefault(key, node)
        if storage.leaves(first) and storage.leaves(node) and node.target not in VIEWS:
            return node  # two outputs are two tensors
        return first

    def _key(self, node: fx.Node) -> Hashable | None:
        try:
            key = (node.target, frozen(node.args), frozen(node.kwargs), self._state(node))
            hash(key)
        except TypeError:  # a symbolic size, or another argument that cannot be hashed
            return None
        return key

    def _state(self, node: fx.Node) -> tuple[int, ...]:
        """How often what the inputs of ``node`` lie in was written to so far."""
        if not self._versions:
            return ()
        roots = (storage_root(a) for a in node.all_input_nodes)
        return tuple(self._versions.get(r, 0) for r in roots)


def frozen(value: object) -> Hashable:
    """Arguments as a key: numbers with their types, so that 1, 1.0 and True differ, as do 0.0 and -0.0."""
    kind = type(value)
    if kind is fx.Node:
        return value
    if kind is float:
        return float, repr(value)
    if kind is int or kind is bool:
        return kind, value
    if isinstance(value, (list, tuple)):
        return tuple([frozen(v) for v in value])
    if isinstance(value, Mapping):
        return tuple((k, frozen(v)) for k, v in sorted(value.items()))
    return value


def is_pure(node: fx.Node) -> bool:
    """Whether two calls with equal arguments may be one.

    That is: the same value each time, nothing written, and no buffer that later nodes fill.
    """
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace not in _NAMESPACES or target._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or target in BUFFERS:  # one buffer each
        return False
    return target not in _FILLED or ((val := value_of(node)) is not None and val.dim() == 0)
