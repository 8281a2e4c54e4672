"""``row_reduce``: a reduction of the last dimension without a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

#: ATen last-dimension reductions that a weld can hold, by the name that the emitter knows them under.
ROW_REDUCE: Mapping[OpOverload, str] = MappingProxyType(
    {aten.sum.dim_IntList: "sum", aten.mean.dim: "mean", aten.amax.default: "amax", aten.amin.default: "amin"}
)


@dataclass(frozen=True)
class RowReduce:
    """A last-dimension reduction as it stands in the graph; accumulated in float32 and rounded to the
    node's own dtype.
    """

    name: str
    keepdim: bool
    kind = "row_reduce"

    def __str__(self) -> str:
        return f"row_reduce{{{self.name} keepdim={self.keepdim}}}"
