"""Horizontal grouping: independent chains that can start at the same point share one launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import fx

from kernelweld.passes.contraction import Contraction, producers
from kernelweld.passes.tasks.caches import clash
from kernelweld.passes.weld import Chain


def pack(graph: fx.Graph, chains: Sequence[Chain], max_tasks: int) -> list[tuple[Chain, ...]]:
    """Groups ``chains`` into packs of at most ``max_tasks``, each of one level and device; the order
    of first chains is kept.
    """
    contraction = Contraction(graph)
    for chain in chains:
        contraction.join(chain.steps)
    packs: list[list[Chain]] = []
    open_packs: dict[tuple[object, ...], list[list[Chain]]] = defaultdict(list)
    levels = _levels(graph, contraction)
    for chain in chains:
        key = (levels[chain.steps[0]], chain.steps[0].meta["val"].device)
        home = next(
            (p for p in open_packs[key] if len(p) < max_tasks and _joins(contraction, p, chain)), None
        )
        if home is None:
            home = []
            packs.append(home)
            open_packs[key].append(home)
        home.append(chain)
        contraction.join([node for member in home for node in member.steps])
    return [tuple(p) for p in packs]


def _joins(contraction: Contraction, pack: Sequence[Chain], chain: Chain) -> bool:
    """Whether the chain can run together with the pack: neither reaches the other, nor its caches."""
    steps = {n for member in (*pack, chain) for n in member.steps}
    return clash(steps) is None and contraction.is_convex(steps)


def _levels(graph: fx.Graph, contraction: Contraction) -> Mapping[fx.Node, int]:
    """How many launches lie at least before each node: a level counts every node but views, a group once."""
    levels: dict[fx.Node, int] = {}
    for node in graph.nodes:
        _level(node, contraction, levels)
    return levels


def _level(node: fx.Node, contraction: Contraction, levels: dict[fx.Node, int]) -> None:
    """Computes the level of ``node`` and of all it depends on, without recursion."""
    stack = [node]
    while stack:
        top = stack[-1]
        if top in levels:
            stack.pop()
            continue
        group = contraction.group(top)
        inputs = [p for member in group for p in producers(member) if p not in group]
        missing = [i for i in inputs if i not in levels]
        if missing:
            stack.extend(missing)
            continue
        level = max((levels[i] + _work(i) for i in inputs), default=0)
        levels.update(dict.fromkeys(group, level))
        stack.pop()


def _work(node: fx.Node) -> int:
    """1 for a node that may launch, 0 for inputs; views are looked through before."""
    return int(node.op == "call_function")
