"""Operators of libraries that are not here: a dumped graph is read where they were never loaded.

A stand-in has the operator's schema. That of a norm whose definition is asked how it rounds also has a CPU
kernel, which rounds as the definition did where the graph was written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.passes.dialect.ir_operators import (
    Rounding,
    forget_roundings,
    read_functional,
    rounding_of,
    rounds_as,
)

#: What torch itself brings.
_TORCH = frozenset({"aten", "prims", "prim", "inductor_prims", "higher_order", "kernelweld"})
#: An object of a class that only its library knows; graphs are written with a name in its place.
_CLASS = re.compile(r"__torch__\.[\w.]+|PyObject")
#: How a schema that was made in Python prints an argument that is written to.
_WRITTEN = re.compile(r"\(\$(\d+)! -> \)")

#: Keeps the definitions alive.
_LIBRARIES: dict[str, torch.library.Library] = {}
#: How stand-ins round, for all graphs that were read so far: the lines of each operator.
_ROUNDINGS: defaultdict[str, dict[str, None]] = defaultdict(dict)


def described(graph: fx.Graph) -> dict[str, Any]:
    """What ``define`` needs for the operators of ``graph``, as JSON."""
    operators = {
        o for node in graph.nodes for o in (node.target, *node.args[:1]) if isinstance(o, OpOverload)
    }
    schemas = {str(o._schema) for o in operators if o.namespace not in _TORCH}
    roundings = {_line(node) for node in graph.nodes if read_functional(node) is not None}
    return {"schemas": sorted(schemas), "roundings": sorted(r for r in roundings if r is not None)}


def define(found: Mapping[str, Any]) -> None:
    """Defines every operator of ``described`` that does not exist."""
    for line in found["roundings"]:
        _ROUNDINGS[line.split()[0]][line] = None
    for schema in found["schemas"]:
        space, _, rest = schema.partition("::")
        name = rest.partition("(")[0]
        if not _exists(space, *name.split(".")):
            library = _LIBRARIES.setdefault(space, torch.library.Library(space, "FRAGMENT"))
            library.define(_readable(rest))
            if (full := f"{space}::{name}") in _ROUNDINGS:
                library.impl(name, _rounding_as(full), "CPU")
    forget_roundings()  # what was asked before may be known now


def undefine() -> None:
    """Takes all stand-ins back, so that the library itself may be loaded. Graphs that call them are not to be
    run any more.
    """
    for library in _LIBRARIES.values():
        library._destroy()
    _LIBRARIES.clear()
    _ROUNDINGS.clear()
    forget_roundings()


def _readable(schema: str) -> str:
    return _CLASS.sub("str", _WRITTEN.sub(r"(a\1!)", schema))


def _exists(space: str, packet: str, overload: str = "default") -> bool:
    found = getattr(getattr(torch.ops, space), packet, None)
    return found is not None and overload in found.overloads()


def _line(node: fx.Node) -> str | None:
    """Operator, dtypes of input and factor, and those it rounds to: ``x::rms_norm bfloat16 float32 …``."""
    call = read_functional(node)
    rounding = None if call is None else rounding_of(call)
    if call is None or rounding is None:
        return None
    dtypes = (*call.dtypes(), rounding.total, rounding.normed)
    return " ".join([str(node.target.name()), *map(_name, dtypes)])  # type: ignore[union-attr]


def _name(dtype: torch.dtype | None) -> str:
    return "none" if dtype is None else str(dtype).removeprefix("torch.")


def _rounding_as(name: str) -> Any:  # noqa: ANN401 # an operator's kernel
    """A kernel that rounds as graphs said of the operator ``name``, for the dtypes that they said it of."""

    def kernel(*values: Any) -> object:  # noqa: ANN401 # as the schema says
        tensors = list(_leading_tensors(values))
        weight = tensors[-1]
        given = [name, _name(tensors[0].dtype), _name(None if weight is None else weight.dtype)]
        line = next((line for line in map(str.split, _ROUNDINGS[name]) if line[:3] == given), None)
        if line is None:
            raise RuntimeError(f"it is not known how {' '.join(given)} rounds")
        total, normed = (getattr(torch, dtype) for dtype in line[3:])
        results = rounds_as(Rounding(total, normed), tensors[:-1], weight, float(values[len(tensors)]))
        return results[0] if len(results) == 1 else tuple(results)

    return kernel


def _leading_tensors(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors, and None for an absent weight, before the first number."""
    for value in values:
        if isinstance(value, float):
            return
        yield value
