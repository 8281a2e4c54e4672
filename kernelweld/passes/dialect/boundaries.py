"""Operators that no weld can take in: what stands before and behind them is welded, they stay where they are.

Each kind that a graph has is told once, with what to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.origin import source_line
from kernelweld.ir.report import NearMiss


@dataclass(frozen=True)
class Boundary:
    """Why an operator is no part of a weld, and what would make it one."""

    reason: str
    remedy: str


def _cache(operator: str) -> Boundary:
    """An operator that does what ``operator`` does, to a cache that nobody gives it."""
    return Boundary(
        "writes to a cache that is no input of the graph: it is found by the layer's name when the call runs",
        "Nothing in the model: what computes its operands is welded. A write is welded where the cache and "
        f"its slots are inputs of the graph, as those of {operator} are.",
    )


def _collective(advice: str = "") -> Boundary:
    return Boundary(
        "waits for other GPUs, which no generated kernel does",
        f"Nothing in the model: what stands before and behind it is welded. {advice}".rstrip(),
    )


#: By the operators' names, as those of the other dialects: their libraries need not be loaded.
BOUNDARIES: Mapping[str, Boundary] = MappingProxyType(
    {
        "vllm.unified_kv_cache_update": _cache("_C_cache_ops.reshape_and_cache_flash"),
        "vllm.unified_mla_kv_cache_update": _cache("_C_cache_ops.concat_and_cache_mla"),
        "vllm.all_reduce": _collective(
            "vLLM's own pass fuse_allreduce_rms makes one call of it and the norm behind it, which then is "
            "left as it is."
        ),
        "vllm.reduce_scatter": _collective(),
        "vllm.all_gather": _collective(),
    }
)


def boundaries(nodes: Iterable[fx.Node]) -> Iterator[NearMiss]:
    """A near miss for each kind of boundary among ``nodes``: of its first call, with the number of all."""
    found: dict[str, list[fx.Node]] = {}
    for node in nodes:
        name = _name(node)
        if name in BOUNDARIES:
            found.setdefault(name, []).append(node)
    for name, calls in found.items():
        yield _near_miss(name, calls)


def _near_miss(name: str, calls: list[fx.Node]) -> NearMiss:
    first, line = calls[0], source_line(calls[0].meta)
    others = f" ({len(calls)} calls in this graph)" if len(calls) > 1 else ""
    reason = f"not welded: %{first.name} {BOUNDARIES[name].reason}{others}"
    return NearMiss(first.name, name, line, reason, "operator", first.name, line, BOUNDARIES[name].remedy)


def _name(node: fx.Node) -> str:
    """The operator that a node calls and that returns something, ``vllm.all_reduce``; empty for any other."""
    called = node.target if node.op == "call_function" else None
    return str(called.name()).replace("::", ".") if isinstance(called, OpOverload) else ""
