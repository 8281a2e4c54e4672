"""The pass: each known call gives way to its words, or is left alone with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import fx

from kernelweld.ir.origin import source_line
from kernelweld.ir.report import NearMiss
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.dialect.bases import read_call_on_bases
from kernelweld.passes.dialect.boundaries import boundaries
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call, called_name, read_call
from kernelweld.passes.dialect.ir_operators import FunctionalCall, expand_functional, read_functional
from kernelweld.passes.dialect.joined import JoinedWrite, expand_joined, read_joined
from kernelweld.passes.dialect.parts import with_parts
from kernelweld.passes.dialect.spelling import Spellings
from kernelweld.passes.dialect.table import OPERATORS
from kernelweld.passes.symbols import SymbolNodes
from kernelweld.passes.values import refresh
from kernelweld.patterns.aliasing import VIEWS, reads_by_strides
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import shape_of, value_of
from kernelweld.patterns.pattern import NoMatch
from kernelweld.patterns.reading import Miss


@dataclass(frozen=True)
class DialectPass(Pass):
    """Replaces operators of serving engines by the words that say what they compute.

    Before: ``%1 = auto_functionalized(_C.fused_add_rms_norm, input=%x, residual=%r, weight=%w, epsilon=…)``,
    of which parts 1 and 2 are read
    After: ``%1 = residual_add(%x, %r); %2 = rms_norm(%1, %w, None, eps=…)``

    The words round where the operator's kernel rounds. Each node remembers the call: a call of which not
    all words end up in welds is put back as it was. Operators stand by name in ``table``; what they do not
    say of a call (packed scales, say) leaves it alone and becomes a near miss.

    The write of a row joined of bytes of several dtypes is taken apart in the same way. Operators of
    ``boundaries`` stay as they are, each kind of them a near miss.
    """

    name: ClassVar[str] = "dialect"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        work = Work(gm.graph)
        for node in list(gm.graph.nodes):
            functional = read_functional(node)
            name = called_name(node) if functional is None else functional.name
            if functional is None and name not in OPERATORS:
                continue
            try:
                work.expand(node) if functional is None else work.replace(functional)
            except Miss as miss:
                context.near_misses.append(_near_miss(node, name, miss.no_match))
        for write in filter(None, map(read_joined, list(gm.graph.nodes))):
            work.split(write)
        context.near_misses.extend(boundaries(gm.graph.nodes))
        return PassResult(work.count > 0, work.count)


def _near_miss(node: fx.Node, name: str, miss: NoMatch) -> NearMiss:
    return NearMiss(
        node.name,
        name,
        source_line(node.meta),
        miss.reason,
        "operator",
        miss.node.name,
        source_line(miss.node.meta),
        miss.remedy
        or "Call it with arguments that are read, or write it in plain torch; until then it runs as it is.",
    )


@dataclass
class Work:
    """One run over a graph, and what calls of it share."""

    graph: fx.Graph
    symbols: SymbolNodes = field(init=False)
    count: int = 0
    spelling: Spellings = field(default_factory=Spellings)
    shared: dict[object, tuple[fx.Node, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.symbols = SymbolNodes(self.graph)

    def expand(self, node: fx.Node) -> None:
        """Replaces the call that ``node`` is, if it is one that returns nothing.

        Raises:
            Miss: words do not say what it computes. The graph is as before.
        """
        call = read_call(node) or read_call_on_bases(node)
        if call is None:
            return
        call = with_parts(call)
        build = Builder(call, self.symbols, self.spelling, self.shared)
        try:
            made = OPERATORS[call.name](call, build)
            pairs = _pairs(call, made)
            build.finish([new for _, new in pairs])
        except Miss:
            build.discard()
            raise
        self._replace(call, pairs)
        self.count += 1

    def replace(self, call: FunctionalCall) -> None:
        """Replaces a call that writes nothing.

        Raises:
            Miss: words do not say what it computes. The graph is as before.
        """
        build = Builder(call, self.symbols, self.spelling, self.shared)
        try:
            made = expand_functional(call, build)
            build.finish(made, is_kernel=False)
        except Miss:
            build.discard()
            raise
        pairs = list(zip(call.results(), made, strict=True))
        for old, new in pairs:
            old.replace_all_uses_with(new)
        refresh([(new, old.meta["val"]) for old, new in pairs])
        for node in dict.fromkeys([*call.results(), call.node]):
            self.graph.erase_node(node)
        self.count += 1

    def split(self, write: JoinedWrite) -> None:
        """Replaces the write of a joined row by writes of its pieces, if words can be put back for it."""
        build = Builder(write, self.symbols, self.spelling, self.shared)
        try:
            last = expand_joined(write, build)
            build.finish([last])
        except Miss:
            build.discard()
            return
        known = write.node.meta["val"]
        write.node.replace_all_uses_with(last)
        refresh([(last, known)])
        for node in reversed(write.nodes()):
            if not node.users:
                self.graph.erase_node(node)
        self.count += 1

    def _replace(self, call: Call, pairs: Sequence[tuple[fx.Node, fx.Node]]) -> None:
        for old, new in pairs:
            old.replace_all_uses_with(new)
        refresh([(new, old.meta["val"]) for old, new in pairs])
        for node in reversed(call.own()):
            self.graph.erase_node(node)
        views = [view for part in call.parts.values() for view in part.views]
        for node in dict.fromkeys([*views, *call.buffers()]):
            if not node.users:
                self.graph.erase_node(node)


def _pairs(call: Call, made: Sequence[fx.Node]) -> list[tuple[fx.Node, fx.Node]]:
    """The results that others read, with what takes their place."""
    values = {call.target(given): new for given, new in zip(call.written(), made, strict=True)}
    pairs = [(old, values[target]) for target, old in call.results.items()]
    for old, new in pairs:
        if not same_shape(shape_of(old), shape_of(new)):
            raise Miss("the result %{} has another shape than the operator gives", old, old)
        if not _same_strides(old, new):
            _check_strides(old, old)
    return pairs


def _same_strides(old: fx.Node, new: fx.Node) -> bool:
    a, b = value_of(old), value_of(new)
    return a is not None and b is not None and same_shape(a.stride(), b.stride())


def _check_strides(node: fx.Node, result: fx.Node) -> None:
    """Checks that nobody depends on the strides of ``result``, of which ``node`` is a view.

    Raises:
        Miss: an operator reads memory by strides, or the graph's caller gets a view.
    """
    for user in node.users:
        if reads_by_strides(user) or user.op == "output":
            raise Miss("%{} needs the strides that the operator leaves in %{}", user, user, result)
        if user.target in VIEWS:
            _check_strides(user, result)
