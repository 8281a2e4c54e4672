"""The domain of a laid-out chain: which axes are rows, which is the feature axis of each value, which
is the axis of heads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from kernelweld.codegen.task import Value
from kernelweld.ir import Pointwise, step_of
from kernelweld.passes.tasks.axes import Axis, AxisSpace, Dim, Dims, DomainMismatch
from kernelweld.passes.tasks.layout import Layout
from kernelweld.passes.tasks.steps import Need, is_concat

#: Elementwise chains have no dimension that must be whole: theirs is cut to tiles of at most this many
#: elements.
ELEMENTWISE_WIDTH = 2048
#: The widest tile that one program holds.
MAX_WIDTH = 32768


@dataclass(frozen=True)
class Domain:
    """Row axes outermost first, the feature axes, and the axis of heads (None unless a reduction
    covers it).
    """

    rows: tuple[Axis, ...]
    features: frozenset[Axis]
    heads: Axis | None

    def feature_of(self, space: AxisSpace, dims: Dims) -> Axis | None:
        """The feature axis among a value's axes; None for a scalar per row."""
        return self.feature_among(_axes(space, dims))

    def feature_among(self, axes: Sequence[Axis]) -> Axis | None:
        """The feature axis among ``axes``; DomainMismatch if there are two."""
        found = [a for a in axes if a in self.features]
        if len(found) > 1:
            raise DomainMismatch("a value has two feature dimensions")
        return found[0] if found else None


def find_domain(layout: Layout, escaping: Collection[fx.Node] = ()) -> Domain:
    """The domain that all steps of ``layout`` share and over which ``escaping`` ones are stored, or
    DomainMismatch.
    """
    if not layout.needs:
        _tile_elementwise(layout)
    features, heads = _tile_axes(layout)
    domain = Domain(_row_axes(layout, features, heads), frozenset(features), heads)
    _check_static(domain)
    _check_single_elements(layout, domain)
    for dims in dict.fromkeys(_all_dims(layout)):
        axes = _axes(layout.space, dims)
        _check_distinct(axes)
        domain.feature_among(axes)
    _check_nesting(layout, domain, escaping)
    return domain


def _all_dims(layout: Layout) -> Iterator[Dims]:
    yield from (held.dims for held in layout.held.values())
    yield from (access.dims for access in layout.reads.values())


def _tile_axes(layout: Layout) -> tuple[dict[Axis, None], Axis | None]:
    features: dict[Axis, None] = {}
    heads: dict[Axis, None] = {}
    for _, need, dim in layout.needs:
        axes = layout.space.resolve(dim)
        if need is Need.SINGLE and len(axes) > 1:
            raise DomainMismatch("the last dimension is cut by another step of the chain")
        if len(axes) > 2:
            raise DomainMismatch("a reduction covers more than two dimensions of another step")
        features.update(dict.fromkeys(axes[-1:]))
        heads.update(dict.fromkeys(axes[:-1]))
    for node in layout.slices:
        features.update(dict.fromkeys(layout.space.resolve(layout.held[node].dims[-1])))
    for node in layout.steps:
        features.update(dict.fromkeys(layout.space.resolve(_fresh_features(layout, node))))
    if len(heads) > 1 or any(a in features for a in heads):
        raise DomainMismatch("reductions of the chain cover different dimensions")
    return features, next(iter(heads), None)


def _fresh_features(layout: Layout, node: fx.Node) -> Dim:
    """The axis of features that a step begins, if it does."""
    dims = layout.held[node].dims
    return tuple(axis for axis in dims[-1] if axis.label == "feature") if dims else ()


def _tile_elementwise(layout: Layout) -> None:
    """Chooses a feature axis for a chain without one: the innermost axis of the widest result, cut to
    a divisor of moderate width.
    """
    dims = max((layout.held[n].dims for n in layout.steps), key=lambda d: len(_axes(layout.space, d)))
    axes = _axes(layout.space, dims)
    if not axes:
        raise DomainMismatch("a chain of scalars has no rows")
    last = axes[-1]
    if last.size.is_Integer and int(last.size) > ELEMENTWISE_WIDTH:
        width = next((w for w in (2048, 1024, 512, 256, 128) if int(last.size) % w == 0), None)
        if width is not None:
            layout.space.unify(
                (last,), (Axis(last.size / width, "tile"), Axis(last.size * 0 + width, "feature"))
            )
            last = layout.space.resolve((last,))[-1]
    layout.needs.append((layout.steps[0], Need.SINGLE, (last,)))


def _axes(space: AxisSpace, dims: Dims) -> list[Axis]:
    return [a for d in dims for a in space.resolve(d)]


def _row_axes(layout: Layout, features: dict[Axis, None], heads: Axis | None) -> tuple[Axis, ...]:
    dims = [*(layout.held[node].dims for node in layout.steps), *(a.dims for a in layout.reads.values())]
    unique = dict.fromkeys(d for several in dims for d in several)
    axes = dict.fromkeys(a for d in unique for a in layout.space.resolve(d))
    return tuple(a for a in axes if a not in features and a is not heads)


def _check_static(domain: Domain) -> None:
    for axis in (*domain.features, *([domain.heads] if domain.heads else [])):
        if not axis.size.is_Integer:
            raise DomainMismatch(f"the tile dimension of {axis.size} elements is not static")
        if axis.size == 0:
            raise DomainMismatch("the tile dimension has no elements")
    width = max((int(a.size) for a in domain.features), default=1) * (
        int(domain.heads.size) if domain.heads else 1
    )
    if width > MAX_WIDTH:
        raise DomainMismatch(f"a row of {width} elements does not fit one tile")


def _check_distinct(axes: Sequence[Axis]) -> None:
    """A value that meets itself transposed would have one axis for two dimensions: its diagonal."""
    if len(set(axes)) != len(axes):
        raise DomainMismatch("a value meets itself with its dimensions in another order")


def _check_single_elements(layout: Layout, domain: Domain) -> None:
    """A last dimension of one element has no axis: a step over it must not take another dimension of
    its values, the tile of other steps.
    """
    for node, _, dim in layout.needs:
        if node in layout.held and not layout.space.resolve(dim):
            dims = layout.held[node].dims
            if domain.feature_of(layout.space, dims[:-1] if is_concat(node) else dims) is not None:
                raise DomainMismatch("a last dimension of one element meets another step's tile dimension")


def _check_nesting(layout: Layout, domain: Domain, escaping: Collection[fx.Node]) -> None:
    """Only casts kept in registers may have fewer rows than the domain: anything else would be done
    again for each outer row.
    """
    rows = {*domain.rows, *([domain.heads] if domain.heads else [])}
    for node in layout.steps:
        needed = rows - {domain.heads} if domain.heads and _collapses(layout, node) else rows
        nests = needed.issubset(_axes(layout.space, layout.held[node].dims))
        if not nests and (node in escaping or not _is_cast(node)):
            raise DomainMismatch("the rows of two steps do not nest")


def _is_cast(node: fx.Node) -> bool:
    step = step_of(node)
    return isinstance(step, Pointwise) and step.name == "cast"


def _collapses(layout: Layout, node: fx.Node) -> bool:
    return any(n is node and len(layout.space.resolve(dim)) == 2 for n, _, dim in layout.needs)


def value_of(layout: Layout, domain: Domain, node: fx.Node, name: str) -> Value:
    """The register value of a held node: its width is its feature axis, 1 without one."""
    held = layout.held[node]
    feature = domain.feature_of(layout.space, held.dims)
    return Value(name, int(feature.size) if feature is not None else 1, held.node.meta["val"].dtype)
