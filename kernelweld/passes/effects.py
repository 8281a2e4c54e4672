"""Calls that may do more than their results say: they stay, and stay in their order.

Operators of serving engines find caches by the name of a layer, states by a request, other GPUs by a group.
Their schemas say that they write nothing, so a graph that only looks at values would drop one whose result
nobody reads, and could move one past another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._ops import OpOverload

#: Libraries whose operators do what their schemas say. Of any other library we do not know it.
_KNOWN = frozenset({"aten", "prims", "kernelweld", "vllm_ir", "_C", "_C_cache_ops"})
#: Operators of other libraries of which we do.
_KNOWN_OPERATORS = frozenset({"vllm::flashinfer_rotary_embedding"})


def has_effects(node: fx.Node) -> bool:
    """Whether ``node`` may read or write memory that is none of its arguments."""
    called = _called(node)
    if called is None:
        return False
    name = str(called.name())
    known = called.namespace in _KNOWN or name in _KNOWN_OPERATORS
    return not known or "allreduce" in name.replace("_", "")  # a kernel library may hold collectives


def _called(node: fx.Node) -> OpOverload | None:
    if node.op != "call_function":
        return None
    functional = node.target in (auto_functionalized, auto_functionalized_v2)
    target = node.args[0] if functional else node.target
    return target if isinstance(target, OpOverload) else None


def following(nodes: Iterable[fx.Node]) -> Mapping[fx.Node, fx.Node]:
    """For each call with effects the next one."""
    return dict(pairwise(node for node in nodes if has_effects(node)))


def eliminate_dead(graph: fx.Graph) -> bool:
    """Removes nodes that nobody reads, but for those with effects; whether there were any."""
    return graph.eliminate_dead_code(is_impure_node=lambda node: node.is_impure() or has_effects(node))


def sort(graph: fx.Graph) -> None:
    """Restores topological order: a node moves only to wait for an operand, and calls with effects keep
    their order.
    """
    before = {after: node for node, after in following(graph.nodes).items()}
    sorted_: dict[fx.Node, None] = {}
    waiting: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
    pending = list(reversed(graph.nodes))
    while pending:
        node = pending.pop()
        needed = [*node.all_input_nodes, *([before[node]] if node in before else ())]
        missing = [n for n in needed if n not in sorted_]
        if missing:
            waiting[missing[-1]].append(node)
        else:
            sorted_[node] = None
            pending.extend(reversed(waiting.pop(node, [])))
    assert len(sorted_) == len(graph.nodes), "a weld would have to run before and after a call with effects"
    for one, after in pairwise(sorted_):
        if one.next is not after:
            one.append(after)
