"""Calls in the second form, ``auto_functionalized_v2``: what is written stands in a list of base tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._ops import OpOverload

from kernelweld.passes.dialect.call import Call, is_written, result_of
from kernelweld.passes.values import fake
from kernelweld.patterns.aliasing import storage_root
from kernelweld.patterns.cache_part import Part
from kernelweld.patterns.cache_write import is_kept
from kernelweld.patterns.ops import SLICE, aten
from kernelweld.patterns.reading import Miss


def read_call_on_bases(node: fx.Node) -> Call | None:
    """The call that ``node`` is, or None.

    ``auto_functionalized_v2(operator, …, _x_base_index=0, _all_bases=[%b])`` writes ``x``, which is ``%b``,
    and gives the bases anew. A part of a cache (by size and strides, or as a slice) is a view that is made
    here; it has no user unless the call becomes words.

    Raises:
        Miss: a written argument is a view of something else than a cache.
    """
    if node.op != "call_function" or node.target is not auto_functionalized_v2:
        return None
    called = node.args[0]
    if not isinstance(called, OpOverload) or called._schema.returns:
        return None
    bases = cast("Sequence[fx.Node]", node.kwargs.get("_all_bases", ()))
    values: list[object] = []
    parts: dict[fx.Node, Part] = {}
    for argument in called._schema.arguments:
        if not is_written(argument):
            values.append(node.kwargs.get(argument.name, argument.default_value))
            continue
        index = node.kwargs.get(f"_{argument.name}_base_index")
        value = bases[index] if isinstance(index, int) else None
        view = None if value is None else _view(node, f"_{argument.name}", value)
        if view is not None and value is not None:
            parts[view], value = Part(value, (view,), ()), view
        values.append(value)
    results = {base: result_of(node, i) for i, base in enumerate(bases, 1)}
    read = {base: result for base, result in results.items() if result is not None}
    return Call(node, called, tuple(values), read, parts)


def _view(node: fx.Node, prefix: str, base: fx.Node) -> fx.Node | None:
    """The view of ``base`` that is written; None if that is ``base`` itself."""
    given = {key.removeprefix(f"{prefix}_"): value for key, value in node.kwargs.items()}
    if "storage_offset" in given:
        target, arguments = aten.as_strided.default, ("size", "stride", "storage_offset")
    elif "slice_dim" in given:
        target, arguments = SLICE, ("slice_dim", "slice_start", "slice_end")
    else:
        return None
    if not is_kept(storage_root(base)):
        raise Miss("%{} writes to a view of %{}, which is no cache", node, node, base)
    with node.graph.inserting_before(node):
        view = node.graph.call_function(target, (base, *(given[name] for name in arguments)))
    view.meta["val"] = fake(view)
    return view
