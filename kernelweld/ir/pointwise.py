"""``pointwise``: any elementwise ATen operation without a name of its own, so that a chain is never
cut by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
prims = torch.ops.prims

#: ATen elementwise operations that a weld can hold, by the name that the emitter knows them under.
POINTWISE: Mapping[OpOverload, str] = MappingProxyType(
    {
        aten.add.Tensor: "add",
        aten.add.Scalar: "add",
        aten.sub.Tensor: "sub",
        aten.sub.Scalar: "sub",
        aten.mul.Tensor: "mul",
        aten.mul.Scalar: "mul",
        aten.div.Tensor: "div",
        aten.div.Scalar: "div",
        aten.neg.default: "neg",
        aten.abs.default: "abs",
        aten.exp.default: "exp",
        aten.log.default: "log",
        aten.sqrt.default: "sqrt",
        aten.rsqrt.default: "rsqrt",
        aten.reciprocal.default: "reciprocal",
        aten.sigmoid.default: "sigmoid",
        aten.tanh.default: "tanh",
        aten.relu.default: "relu",
        aten.sin.default: "sin",
        aten.cos.default: "cos",
        aten.maximum.default: "maximum",
        aten.minimum.default: "minimum",
        aten.clamp_min.default: "clamp_min",
        aten.clamp_max.default: "clamp_max",
        prims.convert_element_type.default: "cast",
    }
)


@dataclass(frozen=True)
class Pointwise:
    """An elementwise ATen node as it stands in the graph: its operator is its own reference.

    Each result is rounded to the node's own dtype, as eager torch does; operands broadcast.
    """

    name: str
    kind = "pointwise"

    def __str__(self) -> str:
        return f"pointwise{{{self.name}}}"
