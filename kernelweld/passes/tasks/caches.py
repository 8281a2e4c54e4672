"""Caches that one kernel may not write: it would read them too, or write them twice."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.tasks.steps import operands_of


def clash(steps: Collection[fx.Node]) -> str | None:
    """Why ``steps`` cannot be one kernel for the sake of a cache they write in place; None if they can.

    Programs of a kernel run in any order: one that reads a cache could see what another has written.
    """
    writes = [node for node in steps if isinstance(word_of(node), CacheWrite)]
    if not writes:
        return None
    written = [_storage(write.args[0]) for write in writes]
    if len(set(written)) < len(written):
        return "one cache is written twice"
    operands = (o for node in steps for o in operands_of(node)[node in writes :])
    read = {_storage(o) for o in operands if isinstance(o, fx.Node) and o not in steps}
    return None if read.isdisjoint(written) else "the kernel would read the cache that it writes"


def _storage(operand: object) -> StorageWeakRef:
    assert isinstance(operand, fx.Node)
    value = operand.meta["val"]
    assert isinstance(value, torch.Tensor)
    return StorageWeakRef(value.untyped_storage())
