"""The group that owns a packed weight and keeps its members' slots true."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kernelweld.passes.merge_gemms import storage
from kernelweld.passes.merge_gemms.eligible import why_not_together
from kernelweld.passes.merge_gemms.linear import PackedLinear, Slot, bias_of


class PackedGroup:
    """Linears that share one packed weight. A slot that is no longer true is emptied, never left behind."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        """Pack `linears`, for which `why_not_together` gave no reason. They stay the same module objects."""
        for linear in linears:
            if isinstance(linear, PackedLinear):
                linear.kernelweld_group.dissolve()
        self.members = tuple(_join(linear, self) for linear in linears)
        self._pack()

    @property
    def is_true(self) -> bool:
        """Whether every member holds the parameters that were packed, where they were packed."""
        return len(self._own()) == len(self.members) and all(map(_is_true, self.members))

    @property
    def packed_parameters(self) -> tuple[torch.Tensor, ...]:
        """The parameters that compiled code reads out of the packed memory."""
        slots = [member.kernelweld_slot for member in self._own()]
        held = [parameter for slot in slots if slot for parameter in (slot.weight, slot.bias)]
        return tuple(parameter for parameter in held if parameter is not None)

    def _own(self) -> list[PackedLinear]:
        """The members that no other group has taken since, and that are still packed linears."""
        return [member for member in self.members if member.__dict__.get("kernelweld_group") is self]

    def release(self) -> None:
        """Let the members compute for themselves. Compiled code notices by its guard on the slot."""
        for member in self._own():
            member.kernelweld_slot = None

    def release_if_broken(self) -> bool:
        """Release when a slot is no longer true; says whether it had to."""
        broken = not self.is_true and any(member.kernelweld_slot for member in self._own())
        if broken:
            self.release()
        return broken

    def follow(self) -> None:
        """After `_apply` on one member: pack again, once the others have been converted like it."""
        if self.is_true:
            return
        self.release()
        if why_not_together(self.members) is None:
            self._pack()

    def dissolve(self) -> None:
        """Make the members plain `nn.Linear` again, each with memory of its own."""
        self.release()
        for member in self._own():
            if type(member) is PackedLinear:
                member.become_plain()

    def _pack(self) -> None:
        weights = [member.weight for member in self.members]
        biases = [bias for bias in map(bias_of, self.members) if bias is not None]
        packed, packed_bias = storage.pack(weights), storage.pack(biases) if biases else None
        *offsets, _ = storage.row_offsets(weights)
        for member, offset in zip(self.members, offsets, strict=True):
            size = member.weight.shape[0]
            member.kernelweld_slot = Slot(packed, packed_bias, offset, size, member.weight, bias_of(member))


def _join(linear: nn.Linear, group: PackedGroup) -> PackedLinear:
    linear.__class__ = PackedLinear
    assert isinstance(linear, PackedLinear)  # what the line above did, for the type checker
    linear.kernelweld_slot, linear.kernelweld_group = None, group
    return linear


def _is_true(member: PackedLinear) -> bool:
    slot = member.kernelweld_slot
    return slot is not None and member.weight is slot.weight and member.bias is slot.bias and slot.in_place
