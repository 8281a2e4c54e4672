"""``skinny-gemm``: the product of one row and a narrow matrix becomes a multiply and a row sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.patterns.matvec import NARROW

aten = torch.ops.aten
cast = torch.ops.prims.convert_element_type.default

#: Dtypes that are widened to float32 before multiplying, and float32 itself.
_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})


@dataclass(frozen=True)
class SkinnyGemmPass(Pass):
    """Rewrites ``mm`` with one static row and at most ``max_columns`` columns.

    Before: ``%2: f32[1,256] = mm(%x[1,7168], permute(%w[256,7168]))``
    After: ``%2 = reshape(sum(mul(%w, %x), -1))`` in float32, rounded to the dtype of the product

    A GEMM library splits such a product over K and reduces it in a second launch; as a row sum it is one
    kernel that reads the weight once, and what follows it (a router's sigmoid and bias) is fused behind
    it. The sum is accumulated in float32, as the library does. Not handled: a matrix that is not the
    transpose of a row-major weight, symbolic rows, addmm.
    """

    name = "skinny-gemm"

    max_columns: int = NARROW

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        found = [
            node
            for node in gm.graph.find_nodes(op="call_function", target=aten.mm.default)
            if self._is_skinny(node)
        ]
        for node in found:
            _rewrite(node)
        return PassResult(modified=bool(found), count=len(found))

    def _is_skinny(self, node: fx.Node) -> bool:
        row, matrix = node.args[:2]
        if (
            not isinstance(row, fx.Node)
            or not isinstance(matrix, fx.Node)
            or matrix.target is not aten.permute.default
        ):
            return False
        rows, columns = node.meta["val"].shape
        weight = matrix.args[0].meta["val"]  # type: ignore[union-attr]
        static = isinstance(rows, int) and isinstance(columns, int) and isinstance(weight.shape[1], int)
        return (
            static
            and rows == 1
            and columns <= self.max_columns
            and weight.is_contiguous()
            and weight.dtype in _DTYPES
        )


def _rewrite(node: fx.Node) -> None:
    row, matrix = node.args[:2]
    assert isinstance(row, fx.Node) and isinstance(matrix, fx.Node)
    weight = matrix.args[0]
    assert isinstance(weight, fx.Node)
    result = node.meta["val"]
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
