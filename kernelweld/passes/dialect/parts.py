"""Arguments that are parts of a cache, which a functional graph writes back into the cache by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from torch import fx

from kernelweld.passes.dialect.call import Call
from kernelweld.patterns.aliasing import storage_root
from kernelweld.patterns.cache_part import Part, part_of
from kernelweld.patterns.cache_write import is_kept
from kernelweld.patterns.reading import Miss


def with_parts(call: Call) -> Call:
    """``call`` with the caches that its arguments are parts of: keys and values of one tensor, a layer's
    slice of the cache of all layers.

    Before: ``%k = select(%kv, 0, 0); %1 = call(%k, …); %2 = select_scatter(%kv, part 1 of %1, 0, 0)``
    After:  ``%2`` is the result of the call, whose target is ``%kv``

    Raises:
        Miss: a part is read besides, or not put back in its place.
    """
    parts = dict(call.parts)
    results: dict[fx.Node, fx.Node] = {}
    for argument, result in call.results.items():
        part = part_of(argument, result, results) if _is_of_cache(argument) else None
        if part is None:
            results[argument] = result
            continue
        _check(result, part, results.get(part.whole))
        parts[argument], results[part.whole] = part, part.backs[-1]
    return replace(call, parts=parts, results=results)


def _is_of_cache(argument: fx.Node) -> bool:
    root = storage_root(argument)
    return root is not argument and is_kept(root)


def _check(result: fx.Node, part: Part, before: fx.Node | None) -> None:
    """Checks that nobody reads what stands between the call and the new cache, which will be no more."""
    line = [result, *part.backs]
    steps = list(pairwise(line))
    for node, user in steps if before is None else [*steps, (before, part.backs[-1])]:
        other = next((found for found in node.users if found is not user), None)
        if other is not None:
            raise Miss("%{} is read by %{} before its cache is whole again", node, node, other)
    if any(view.all_input_nodes != [view.args[0]] for view in part.views):
        raise Miss("%{} is a part of a cache at places that are symbols", part.views[0], part.views[0])
