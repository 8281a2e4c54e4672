"""``skinny-gemm``: the product of one row and a matrix becomes a multiply and a row sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from kernelweld.passes.base import Pass, PassContext, PassResult

aten = torch.ops.aten
cast = torch.ops.prims.convert_element_type.default

#: Dtypes that are widened to float32 before multiplying, and float32 itself.
_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
_PRODUCTS = (aten.mm.default, aten.bmm.default)


@dataclass(frozen=True)
class SkinnyGemmPass(Pass):
    """Rewrites ``mm`` with one static row and at most ``max_columns`` columns, and ``bmm`` with one such row
    a batch.

    Before: ``%2: f32[1,256] = mm(%x[1,7168], permute(%w[256,7168]))``
    After: ``%2 = reshape(sum(mul(%w, %x), -1))`` in float32, rounded to the dtype of the product

    A GEMM library splits such a product over K and reduces it in a second launch; as a row sum it is one
    kernel that reads the weight once, what follows it (a router's sigmoid and bias) is fused behind it, and
    it can share a launch with other work (the heads' product of absorbed latent attention with the rotation
    beside it). The sum is accumulated in float32, as the library does. Not handled: an ``mm`` whose matrix is
    not the transpose of a row-major weight, a ``bmm`` whose matrix is computed, symbolic rows, addmm.
    """

    name = "skinny-gemm"

    max_columns: int = 1024

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        nodes = [n for op in _PRODUCTS for n in gm.graph.find_nodes(op="call_function", target=op)]
        found = [node for node in nodes if self._is_skinny(node)]
        for node in found:
            _rewrite(node)
        return PassResult(modified=bool(found), count=len(found))

    def _is_skinny(self, node: fx.Node) -> bool:
        row, matrix = node.args[:2]
        if not isinstance(row, fx.Node) or not isinstance(matrix, fx.Node):
            return False
        shapes = (node.meta["val"].shape, matrix.meta["val"].shape)
        if any(not isinstance(size, int) for shape in shapes for size in shape):
            return False
        *_, rows, columns = shapes[0]
        if rows != 1 or columns > self.max_columns or matrix.meta["val"].dtype not in _DTYPES:
            return False
        return _is_weight(matrix) if node.target is aten.bmm.default else _is_transposed(matrix)


def _is_transposed(matrix: fx.Node) -> bool:
    """Whether ``matrix`` is the transpose of a row-major weight."""
    if matrix.target is not aten.permute.default:
        return False
    weight = matrix.args[0]
    return isinstance(weight, fx.Node) and bool(weight.meta["val"].is_contiguous())


def _is_weight(matrix: fx.Node) -> bool:
    """Whether ``matrix`` is an input of the graph, or its transpose, and so lies as it is read."""
    source = matrix.args[0] if matrix.target is aten.permute.default else matrix
    return isinstance(source, fx.Node) and source.op in ("placeholder", "get_attr")


def _rewrite(node: fx.Node) -> None:
    row, matrix = node.args[:2]
    assert isinstance(row, fx.Node) and isinstance(matrix, fx.Node)
    result, rank = node.meta["val"], node.meta["val"].dim()
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    weight = matrix.args[0] if matrix.target is aten.permute.default else None
    if not isinstance(weight, fx.Node) or matrix.args[1] != swapped:
        weight = _call(node, aten.permute.default, matrix, swapped)
    product = _call(node, aten.mul.Tensor, _widened(node, weight), _widened(node, row))
    total = _call(node, aten.sum.dim_IntList, product, [-1])
    rounded = total if result.dtype == torch.float32 else _call(node, cast, total, result.dtype)
    node.replace_all_uses_with(_call(node, aten.reshape.default, rounded, list(result.shape)))
    node.graph.erase_node(node)
    if not matrix.users:
        matrix.graph.erase_node(matrix)


def _widened(node: fx.Node, operand: fx.Node) -> fx.Node:
    return (
        operand if operand.meta["val"].dtype == torch.float32 else _call(node, cast, operand, torch.float32)
    )


def _call(node: fx.Node, target: OpOverload, *args: Argument) -> fx.Node:
    """A call before ``node`` from the same place in the model's source, with its fake value."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, args)
    new.meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
    with node.meta["val"].fake_mode:
        new.meta["val"] = target(*fx.node.map_arg(args, lambda n: n.meta["val"]))
    return new
