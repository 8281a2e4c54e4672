"""What each operator means for the number of kernels."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._inductor import inductor_prims
from torch._ops import OpOverload

from kernelweld.kernels.route import route
from kernelweld.kernels.route_configs import config_for
from kernelweld.passes.launches.sizes import Size, elements, product, quotient

aten = torch.ops.aten
prims = torch.ops.prims


class Trait(Enum):
    """What a call does with its operands."""

    SAME = auto()
    """A view of all elements."""
    PART = auto()
    """A view of some elements."""
    UNSET = auto()
    """Memory with nothing in it."""
    ELEMENTWISE = auto()
    """Computed element by element; constants too."""
    INDEXED = auto()
    """Computed element by element from reads at other places."""
    REDUCTION = auto()
    """A loop over rows: reductions, scans and short sorts."""
    SCATTER = auto()
    """Updates written over the first operand."""
    STORE = auto()
    """A new value for a graph input."""
    LIBRARY = auto()
    """A call of a kernel that Inductor did not make, with operands and results in memory."""


def _table(*pairs: tuple[Trait, tuple[object, ...]]) -> Mapping[object, Trait]:
    return MappingProxyType({target: trait for trait, targets in pairs for target in targets})


#: Operators that are no library call and not pointwise by torch's own tag.
TRAITS: Mapping[object, Trait] = _table(
    (
        Trait.SAME,
        (
            operator.getitem,
            aten.alias.default,
            aten.detach.default,
            aten.expand.default,
            aten.permute.default,
            aten.reshape.default,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.t.default,
            aten.transpose.int,
            aten.unsqueeze.default,
            aten.view.default,
            aten._unsafe_view.default,
            aten.lift_fresh_copy.default,
            inductor_prims.force_stride_order,
        ),
    ),
    (
        Trait.PART,
        (
            aten.as_strided.default,
            aten.diagonal.default,
            aten.select.int,
            aten.slice.Tensor,
            aten.split.Tensor,
            aten.split_with_sizes.default,
            aten.unbind.int,
            aten.unfold.default,
            aten.view.dtype,
        ),
    ),
    (
        Trait.ELEMENTWISE,
        (
            aten.arange.start_step,
            aten.clone.default,
            aten.copy.default,
            aten.full.default,
            aten.full_like.default,
            aten.scalar_tensor.default,
            prims.convert_element_type.default,
            prims.iota.default,
        ),
    ),
    (
        Trait.INDEXED,
        (
            aten.cat.default,
            aten.constant_pad_nd.default,
            aten.embedding.default,
            aten.flip.default,
            aten.gather.default,
            aten.index.Tensor,
            aten.index_select.default,
            aten.roll.default,
            aten.select_scatter.default,
            aten.slice_scatter.default,
            aten._unsafe_index.Tensor,
        ),
    ),
    (
        Trait.REDUCTION,
        (
            aten.all.dim,
            aten.amax.default,
            aten.amin.default,
            aten.any.dim,
            aten.argmax.default,
            aten.cumsum.default,
            aten.max.dim,
            aten.mean.dim,
            aten.prod.dim_int,
            aten.sort.default,
            aten.sort.stable,
            aten.sum.default,
            aten.sum.dim_IntList,
            aten.var_mean.correction,
            inductor_prims.prepare_softmax_online,
        ),
    ),
    (
        Trait.SCATTER,
        (
            aten.index_put.default,
            aten.scatter.src,
            aten.scatter.value,
            aten.scatter_add.default,
            aten.scatter_reduce.two,
        ),
    ),
    (Trait.UNSET, (aten.empty.memory_format, aten.empty_strided.default)),
    (Trait.STORE, (aten.copy_.default,)),
)

_SORTS = frozenset({aten.sort.default, aten.sort.stable})
_SCANS = frozenset({aten.cumsum.default, *_SORTS})

#: Where calls that take parts of one dimension, or join parts, have it among their arguments.
_DIMENSION: Mapping[object, int] = MappingProxyType(
    {
        aten.cat.default: 1,
        aten.slice.Tensor: 1,
        aten.split.Tensor: 2,
        aten.split_with_sizes.default: 2,
    }
)

#: Launches of one call, for library calls that need more than one.
_LIBRARY: Mapping[object, int] = MappingProxyType(
    {
        aten._grouped_mm.default: 2,  # the table of problems, then the GEMM
        aten.histc.default: 2,  # a fill, then the histogram
        triton_kernel_wrapper_functional: 1,
    }
)

#: Inductor writes reductions of fewer elements out as sums of terms, which makes them pointwise.
UNROLLED_BELOW = 8
#: Sorts of longer rows are library calls.
LONGEST_SORT = 512


def trait_of(node: fx.Node) -> Trait:
    """The trait of a call, by its operator and, where they matter, its operands."""
    trait = TRAITS.get(node.target)
    if trait is Trait.REDUCTION:
        return _reduction(node)
    if trait is Trait.SAME and _is_copy(node):
        return Trait.ELEMENTWISE
    if node.target is operator.getitem and trait_of(node.args[0]) is Trait.PART:  # type: ignore[arg-type]
        return Trait.PART
    if trait is not None:
        return trait
    is_pointwise = isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
    return Trait.ELEMENTWISE if is_pointwise else Trait.LIBRARY


def launches_of(node: fx.Node) -> int:
    """The launches of one library call."""
    if node.target is aten.topk.default:  # selection, and a sort unless any order will do
        return 2 if len(node.args) < 5 or node.args[4] else 1
    return _of_route(node) if node.target is route.overload else _LIBRARY.get(node.target, 1)


def _of_route(node: fx.Node) -> int:
    """One for few rows, or rows that are a symbol; else the GEMM and the choice."""
    x, weight = (operand.meta["val"] for operand in node.all_input_nodes[:2])
    rows = x.shape[0]
    fits = not isinstance(rows, int) or config_for(rows, x.shape[1], weight.shape[0], weight.dtype)
    return 1 if fits else 2


def row_length(node: fx.Node) -> Size:
    """The length of the inner loop of a reduction, scan or sort."""
    operand = node.all_input_nodes[0]
    if node.target in _SCANS:
        dim = next((a for a in node.args[1:] if isinstance(a, int) and not isinstance(a, bool)), -1)
        return product([operand.meta["val"].shape[dim]])
    return quotient(elements(operand), elements(node))


def dim_of(node: fx.Node) -> int | None:
    """The dimension that a slice, split or concatenation works on, as it is written; None for other calls."""
    place = _DIMENSION.get(node.target)
    if place is None:
        return None
    dim = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    return dim if isinstance(dim, int) else None


def _reduction(node: fx.Node) -> Trait:
    row = row_length(node)
    if node.target in _SORTS and not (isinstance(row, int) and row <= LONGEST_SORT):
        return Trait.LIBRARY
    is_short = isinstance(row, int) and row < UNROLLED_BELOW and node.target not in _SCANS
    return Trait.ELEMENTWISE if is_short else Trait.REDUCTION


def _is_copy(node: fx.Node) -> bool:
    """Whether a reshape moves data: its operand's strides do not allow a view."""
    if node.target is not aten.reshape.default:
        return False
    operand, result = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return not (
        operand.is_contiguous() or operand.untyped_storage()._cdata == result.untyped_storage()._cdata
    )
