"""Rows of one call on their way to its caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx

from kernelweld.ir import CacheWrite, Quant
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.passes.dialect.quants import E4M3, LIMIT, check_single
from kernelweld.patterns.aliasing import storage_root
from kernelweld.patterns.cache_write import is_kept
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import FLOATS, dtype_name, dtype_of, shape_of
from kernelweld.patterns.reading import Miss

#: Names of caches that hold the values as they are, and of those that hold e4m3.
PLAIN, FP8 = ("auto", "bfloat16", "float16"), ("fp8", "fp8_e4m3")

#: A view of a cache, or of a part of it.
View = Callable[[fx.Node], fx.Node]


@dataclass
class Store:
    """Writes rows to ``slots`` of caches, one part after the other; a slot below zero writes nothing."""

    call: Call
    build: Builder
    slots: fx.Node
    _now: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def write(self, cache: fx.Node, x: fx.Node, *views: View) -> fx.Node:
        """``x`` written to the part of ``cache`` that ``views`` show, all of it without any; returns the new
        value of the target of ``cache``.
        """
        target = self.call.target(cache)
        root = storage_root(target)
        if not is_kept(root) or (target is cache and root is not cache):
            raise Miss("the cache %{} is no input that the graph writes", cache, cache)
        now = self._now.get(target, target)
        part = self.call.parts.get(cache)
        seen = cache if now is target else now
        for view in reversed(part.views) if part is not None and now is not target else ():
            seen = self.build.viewed(view, seen)
        for show in views:
            seen = show(seen)
        whole = now if views or part is not None else None
        self._check(seen, x)
        word = CacheWrite((0, 1), negative="nowhere")
        self._now[target] = self.build.word(word, seen, x, self.slots, None, whole)
        return self._now[target]

    def codes(self, x: fx.Node, scale: fx.Node) -> fx.Node:
        """e4m3 codes of ``x`` divided by ``scale``, one element, as the conversion saturates them."""
        check_single(scale)
        if dtype_of(x) not in FLOATS:
            raise Miss("the values %{} are {}", x, x, dtype_name(dtype_of(x)))
        return self.build.word(Quant(-LIMIT, LIMIT, "divide"), x, scale)

    def _check(self, cache: fx.Node, x: fx.Node) -> None:
        names = [dtype_name(dtype_of(node)) for node in (cache, x)]
        as_bytes = dtype_of(cache) == torch.uint8 and dtype_of(x) == E4M3
        if dtype_of(x) == E4M3 and torch.version.hip is not None:
            raise Miss("the format of the codes in %{} depends on the GPU on ROCm", cache, cache)
        if names[0] != names[1] and not as_bytes:
            raise Miss("the cache %{} is {}, the values {}", cache, cache, *names)
        if dtype_of(self.slots) not in (torch.int64, torch.int32):
            raise Miss("the slots %{} are {}", self.slots, self.slots, dtype_name(dtype_of(self.slots)))
        if not same_shape(shape_of(x)[1:], shape_of(cache)[2:]):
            raise Miss("%{} has not the heads of the cache %{}", x, x, cache)
        if not same_size(shape_of(x)[0], shape_of(self.slots)[0]):
            raise Miss("%{} has rows without a slot", x, x)
