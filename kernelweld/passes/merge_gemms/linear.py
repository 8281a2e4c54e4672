"""The linear that reads its rows out of a packed weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import nn
from torch.nn import functional as F

from kernelweld.passes.merge_gemms import storage

if TYPE_CHECKING:
    from kernelweld.passes.merge_gemms.group import PackedGroup

_PRIVATE = ("kernelweld_slot", "kernelweld_group")


class Slot(NamedTuple):
    """Where a linear's rows are, and for which parameters that is true.

    A tuple, because Dynamo traces through one with nothing but guards on its items.
    """

    packed: nn.Parameter  # [rows, in_features]
    packed_bias: nn.Parameter | None  # [rows]
    offset: int
    size: int
    weight: torch.Tensor  # [size, in_features], the rows from `offset`
    bias: torch.Tensor | None  # [size]

    @property
    def in_place(self) -> bool:
        """Whether both parameters still are the memory that compiled code reads for them."""
        if not storage.is_packed_at(self.weight, self.packed, self.offset, self.size):
            return False
        if self.bias is None or self.packed_bias is None:
            return True
        return storage.is_packed_at(self.bias, self.packed_bias, self.offset, self.size)


class PackedLinear(nn.Linear):
    """An `nn.Linear` that, when compiled, computes all its siblings' outputs and keeps its own columns.

    Siblings compute the same expression on the same input, so sharing equal expressions leaves one GEMM.
    Run eagerly, exported, or traced where the weight needs a gradient, it is `nn.Linear` to the bit. The
    identity tests become Dynamo guards: another parameter means a recompilation to the plain path, never a
    stale weight.
    """

    kernelweld_slot: Slot | None
    kernelweld_group: PackedGroup

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`, when compiled as columns of a wider result."""
        slot = self.kernelweld_slot
        if (
            slot is None
            or not torch.compiler.is_compiling()
            or torch.compiler._is_exporting_flag  # before 2.13, Dynamo takes is_exporting() for always true
            or self.weight is not slot.weight
            or self.bias is not slot.bias
            or (torch.is_grad_enabled() and _needs_grad(slot))
        ):
            return F.linear(input, self.weight, self.bias)
        return F.linear(input, slot.packed, slot.packed_bias).narrow(-1, slot.offset, slot.size)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """`.to()`, `.half()`, `.cuda()` … give the same parameters other memory: pack again, or let go."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.kernelweld_group.follow()
        return self

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        """A load copies through the slices, unless `assign=True` brings other tensors: then let go."""
        super()._load_from_state_dict(*args, **kwargs)
        self.kernelweld_group.release_if_broken()

    def __reduce_ex__(self, protocol: object) -> str | tuple[object, ...]:
        """Copies and pickles are the plain `nn.Linear` that this stands for, without its slot."""
        if type(self) is not PackedLinear:  # torch's parametrizations subclass the class of the module
            return super().__reduce_ex__(protocol)  # type: ignore[arg-type]
        # `nn.Module.__getstate__` leaves out what `compile` bound to this very module
        state = {k: v for k, v in self.__getstate__().items() if k not in _PRIVATE}  # type: ignore[no-untyped-call]
        return object.__new__, (nn.Linear,), state

    def become_plain(self) -> None:
        """Turn back into the `nn.Linear` that this was, its parameters in memory of their own."""
        for parameter in self.parameters(recurse=False):
            storage.unpack(parameter)
        for name in _PRIVATE:
            del self.__dict__[name]
        self.__class__ = nn.Linear  # type: ignore[assignment]


def bias_of(linear: nn.Linear) -> torch.Tensor | None:
    """The bias, typed as what it can be."""
    return linear.bias


def _needs_grad(slot: Slot) -> bool:
    return slot.weight.requires_grad or (slot.bias is not None and slot.bias.requires_grad)
