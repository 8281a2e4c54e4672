"""Horizontal grouping: independent chains that can start at the same point share one launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from torch import fx

from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.contraction import Contraction, escaping, producers
from kernelweld.passes.joining import Join
from kernelweld.passes.launches.traits import Trait, trait_of
from kernelweld.passes.tasks.caches import clash
from kernelweld.passes.weld import Chain

#: How many steps of the graph earlier or later than its own a cache write may be done.
_REACH = 8


def pack(
    graph: fx.Graph, chains: Sequence[Chain], max_tasks: int, joins: Sequence[Join] = ()
) -> list[tuple[Chain, ...]]:
    """Groups ``chains`` into packs of at most ``max_tasks``, each of one device and level; the order
    of first chains is kept. A chain that only leaves rows of caches goes with any pack near it: nothing
    waits for it. Chains of one of ``joins`` go together, whatever their levels.
    """
    contraction = Contraction(graph)
    for chain in chains:
        contraction.join(chain.steps)
    packs: list[list[Chain]] = []
    open_packs: dict[tuple[object, int], list[list[Chain]]] = defaultdict(list)
    levels = _levels(graph, contraction)
    for chain in sorted(chains, key=_is_lone_write):  # the others first
        level, device = levels[chain.steps[0]], chain.steps[0].meta["val"].device
        reach = _REACH if _is_lone_write(chain) else 0
        beside = {one for join in joins if chain in join.chains for one in join.chains}
        near = [[p for p in packs if not beside.isdisjoint(p)]]
        near += [open_packs[device, level + by] for by in sorted(range(-reach, reach + 1), key=abs)]
        found = (p for ps in near for p in ps if len(p) < max_tasks and _joins(contraction, p, chain))
        home = next(found, None)
        if home is None:
            home = []
            packs.append(home)
        if not any(home is other for other in open_packs[device, level]):
            open_packs[device, level].append(home)
        home.append(chain)
        contraction.join([node for member in home for node in member.steps])
    return [tuple(p) for p in packs]


def _is_lone_write(chain: Chain) -> bool:
    """Whether all that the chain leaves is rows of caches: values, beside rotated keys; normed latents,
    beside their rotated part, which waits for tables.
    """
    return all(isinstance(word_of(node), CacheWrite) for node in escaping(chain.steps))


def _joins(contraction: Contraction, pack: Sequence[Chain], chain: Chain) -> bool:
    """Whether the chain can run together with the pack: neither reaches the other, nor its caches."""
    others = {n for member in pack for n in member.steps}
    if _reads(chain.steps, others) or _reads(others, chain.steps):
        return False
    steps = others.union(chain.steps)
    return clash(steps) is None and contraction.is_convex(steps)


def _reads(steps: Collection[fx.Node], others: Collection[fx.Node]) -> bool:
    """Whether one of ``steps`` reads a value of ``others`` at once or through views."""
    return any(producer in others for node in steps for producer in producers(node))


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
    """1 for a node that may launch, 0 for inputs and views."""
    return int(node.op == "call_function" and trait_of(node) not in (Trait.SAME, Trait.PART))
