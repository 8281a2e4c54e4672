"""Tensor parallelism: which slice of a weight a rank holds, and the sum over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelweld.errors import BadOption

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Parallel:
    """Rank ``rank`` of ``size``. Without a ``group`` nothing is summed: a slice of the model to look at or to
    time, whose layers return this rank's addend.
    """

    rank: int = 0
    size: int = 1
    group: ProcessGroup | None = None

    def share(self, total: int, name: str) -> int:
        """The size of each rank's part of ``total``.

        Raises:
            BadOption: ``total`` is no multiple of the number of ranks.
        """
        if total % self.size:
            raise BadOption("size", self.size, f"a divisor of {name}, {total}")
        return total // self.size

    def slice(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of ``tensor`` along ``dim``, a view."""
        part = self.share(tensor.shape[dim], f"dimension {dim} of a weight")
        return tensor.narrow(dim, self.rank * part, part)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of ``x`` over the ranks, a new tensor."""
        if self.group is None or self.size == 1:
            return x
        from torch.distributed import _functional_collectives as collectives

        total: torch.Tensor = collectives.all_reduce(x, "sum", self.group)
        return total
