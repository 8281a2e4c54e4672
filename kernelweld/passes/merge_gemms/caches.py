"""Take fake tensors back out of the caches of functions that ran on them."""

from __future__ import annotations

import functools
import gc

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def drop_fakes(mode: FakeTensorMode) -> int:
    """Clear each `functools.lru_cache` that holds tensors of `mode`, else real calls would get them.

    Gives the number of caches that were cleared.
    """
    wrapper = functools._lru_cache_wrapper
    # By type, not isinstance: some objects import a module when asked for their class.
    tainted = [found for found in gc.get_objects() if type(found) is wrapper and _holds_fakes(found, mode)]
    for cached in tainted:
        cached.cache_clear()
    return len(tainted)


def _holds_fakes(cached: object, mode: FakeTensorMode) -> bool:
    """Whether a tensor of `mode` is a result in the cache, or lies in a tuple, list or dict that is one."""
    seen: set[int] = set()
    pending = gc.get_referents(cached)
    while pending:
        found = pending.pop()
        if type(found) is FakeTensor and found.fake_mode is mode:
            return True
        if type(found) in (tuple, list, dict) and id(found) not in seen:
            seen.add(id(found))
            pending += gc.get_referents(found)
    return False
