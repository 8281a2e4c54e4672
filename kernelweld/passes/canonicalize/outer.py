"""Matrix products without a sum: a column times a row is an elementwise product."""

from __future__ import annotations

import torch
from torch import fx

from kernelweld.passes.canonicalize.edit import put_before
from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.patterns.dims import same_size
from kernelweld.patterns.ops import FLOATS, MUL, dtype_of, shape_of, value_of


def outer_product(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``bmm(a[B, M, 1], b[B, 1, N])`` becomes ``mul(a, b)``, as Inductor itself has it from torch 2.13 on,
    and so does ``mm(a[M, 1], b[1, N])``, which Inductor makes of a batch of one.

    Where a sum that starts at 0.0 gives 0.0, the product alone may give -0.0.
    """
    column, row = node.args[:2]
    if not isinstance(column, fx.Node) or not isinstance(row, fx.Node) or len(node.args) > 2 or node.kwargs:
        return None
    if not same_size(shape_of(column)[-1], 1) or dtype_of(node) not in FLOATS:
        return None
    return put_before(node, MUL[0], (column, row)) if _keeps_layout(node, column, row) else None


def _keeps_layout(node: fx.Node, column: fx.Node, row: fx.Node) -> bool:
    """Whether the elementwise product is laid out like the matrix product, which is contiguous."""
    value, a, b = value_of(node), value_of(column), value_of(row)
    if value is None or a is None or b is None or value.dtype != a.dtype:
        return False
    with value.fake_mode:  # type: ignore[attr-defined]
        product = torch.mul(a, b)
    strides = zip(value.shape, value.stride(), product.stride(), strict=True)
    return all(same_size(size, 1) or same_size(x, y) for size, x, y in strides)
