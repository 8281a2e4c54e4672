"""``plan``: groups raised words and the unnamed steps around them into welds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from kernelweld.codegen.emit import emit
from kernelweld.errors import CodegenFailed
from kernelweld.ir import ResidualAdd, RopeTable, word_of
from kernelweld.ir.origin import source_line
from kernelweld.ir.report import NearMiss, Rule
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.chaining import Chainer
from kernelweld.passes.copies import moved_scales
from kernelweld.passes.joining import Join, cut_joins, joined_by
from kernelweld.passes.launcher import program_of
from kernelweld.passes.packing import pack
from kernelweld.passes.tasks.axes import DomainMismatch
from kernelweld.passes.tasks.caches import clash
from kernelweld.passes.tasks.derived import defect, is_derived
from kernelweld.passes.tasks.lookup import is_looked_up
from kernelweld.passes.weld import Chain, Weld, WeldPlan, describe, weld_name
from kernelweld.passes.whole import Pack, whole_packs
from kernelweld.passes.worth import weigh

#: What to change in the model for words that no weld holds, by the rule that decided.
_REMEDIES: Mapping[Rule, str] = {
    "cost": "Nothing in the model: left alone it costs fewer launches. To measure a weld all the same, use "
    "--pipeline 'canonicalize,dialect,raise,route,page-slots,skinny-gemm,plan{keep-all=true},lower'.",
    "legality": "Write it and its neighbours over the same rows, without copies or other views between them.",
}


@dataclass(frozen=True)
class _Refusal:
    """Why no weld holds a word, and the rule that decided."""

    reason: str
    rule: Rule = "legality"
    advice: str = ""

    @property
    def remedy(self) -> str:
        """What to change in the model."""
        return self.advice or _REMEDIES[self.rule]


#: What to change in a word of another distribution whose reference is no row task.
_OF_REFERENCE = "Write its reference in elementwise steps and reductions of the last dimension."

#: For a residual sum or a rotary table without a norm, rotation or gate beside it.
_ALONE = _Refusal(
    "by itself it is one elementwise kernel, which Inductor fuses with its neighbours",
    "cost",
    "Nothing: it is no launch of its own.",
)


@dataclass(frozen=True)
class PlanPass(Pass):
    """Decides which steps become one kernel launch; changes nothing in the graph.

    Before: ``%2 = residual_add(%0, %1); %3 = rms_norm(%2, %w); %7 = rope(%5, %c, %s); %8 = rope(%6, %c, %s)``
    After: the same graph, and a plan of two welds: ``residual_add_rms_norm``, and ``rope`` of two row tasks.

    Vertical: a step joins the chain of its producers when their rows nest and the set stays convex.
    Horizontal: chains of one level share a launch, ``max_tasks`` of them at most. A chain without a named
    word is left to the compiler around us, and so is one that it would compute in fewer launches, unless
    ``keep_all``.
    """

    name = "plan"

    max_tasks: int = 8
    keep_all: bool = False

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        chainer = Chainer(gm.graph)
        chains = [Chain(steps) for steps in chainer.run(gm.graph)]
        packs, joins, refusals = self._packs(gm.graph, chains)
        refusals = {node: _refused(node, reason) for node, reason in chainer.refusals.items()} | refusals
        welds = [Weld(weld_name(p), p, joined_by(p, joins)) for p in packs]
        left_out = (*_left_out(gm.graph, welds, refusals), *moved_scales(welds))
        context.plan = WeldPlan(tuple(welds), left_out, _count_words(gm.graph), tuple(map(describe, welds)))
        return PassResult(modified=False, count=len(welds))

    def _packs(
        self, graph: fx.Graph, chains: Sequence[Chain]
    ) -> tuple[list[Pack], list[Join], dict[fx.Node, _Refusal]]:
        """The packs of ``chains`` that are worth a launch, what they join, and why other steps are in none.

        Chains whose results are joined to rows write them side by side, if they come to share a launch.
        """
        whole: set[fx.Node] = set()
        while True:
            cut, joins = cut_joins(graph, chains, whole)
            joined = {chain for join in joins for chain in join.chains}
            named = [chain for chain in cut if _is_named(chain) or chain in joined]
            refused = {chain: reason for chain in named if (reason := _refusal(chain)) is not None}
            legal = [chain for chain in named if chain not in refused]
            refusals = {node: _Refusal(reason) for chain, reason in refused.items() for node in chain.steps}
            packs = self._worthwhile(graph, pack(graph, legal, self.max_tasks, joins), refusals)
            joined_rows = {node for p in packs for node in joined_by(p, joins)}
            torn = {join.node for join in joins} - joined_rows
            if not torn:
                return packs, joins, refusals
            whole |= torn

    def _worthwhile(
        self, graph: fx.Graph, packs: list[Pack], refusals: dict[fx.Node, _Refusal]
    ) -> list[Pack]:
        """What is left of ``packs`` without chains that cost launches or cut an operator apart. Each loss
        changes what the others are worth; notes the reasons in ``refusals``.
        """
        while True:
            if not self.keep_all:
                worth = weigh(graph, packs)
                packs = list(worth.packs)
                refusals.update({node: _Refusal(str(loss), "cost") for node, loss in worth.losses.items()})
            packs, lost = whole_packs(graph, packs)
            refusals.update({node: _Refusal(reason) for node, reason in lost.items()})
            if not lost or self.keep_all:
                return packs


def _refused(node: fx.Node, reason: str) -> _Refusal:
    """The refusal of a step that starts no chain; a word may be itself the cause."""
    own = is_derived(node) and defect(node) is not None
    return _Refusal(reason, advice=_OF_REFERENCE if own else "")


def _is_named(chain: Chain) -> bool:
    """Whether a chain holds a norm, a rotation or a gate: any other the compiler around us fuses as well."""
    return any(not isinstance(word, ResidualAdd) for word in chain.words)


def _refusal(chain: Chain) -> str | None:
    """Why no kernel can be generated for a chain, None if one can."""
    if (reason := clash(chain.steps)) is not None:
        return reason
    try:
        emit(program_of(Weld(weld_name((chain,)), (chain,)))[0])
    except (CodegenFailed, DomainMismatch) as error:
        return error.reason
    return None


def _left_out(
    graph: fx.Graph, welds: Sequence[Weld], refusals: Mapping[fx.Node, _Refusal]
) -> tuple[NearMiss, ...]:
    """The words that no weld holds, with the reason that kept them out."""
    welded = {node for weld in welds for node in weld.steps}
    left = ((node, word_of(node)) for node in graph.nodes if node not in welded)
    return tuple(
        _near_miss(node, word.kind, refusals.get(node, _ALONE))
        for node, word in left
        if word is not None and not (isinstance(word, RopeTable) and is_looked_up(node, welded))
    )


def _near_miss(node: fx.Node, kind: str, why: _Refusal) -> NearMiss:
    line, reason = source_line(node.meta), f"not welded: {why.reason}"
    return NearMiss(node.name, kind, line, reason, why.rule, node.name, line, why.remedy)


def _count_words(graph: fx.Graph) -> dict[str, int]:
    words = (word_of(node) for node in graph.nodes)
    return dict(sorted(Counter(word.kind for word in words if word is not None).items()))
