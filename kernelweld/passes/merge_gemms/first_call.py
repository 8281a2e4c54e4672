"""What a compiled model does before each call: merge once, then make sure that no slice went stale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from kernelweld.passes.merge_gemms.group import PackedGroup
from kernelweld.passes.merge_gemms.merge import packed_groups, prepare
from kernelweld.passes.merge_gemms.report import MergeReport


class MergeOnFirstCall:
    """Call it with the arguments of every call of the compiled model, before the model.

    On the first call there are example inputs and nothing is traced yet: it runs `prepare`. Later calls
    compare the addresses of the packed parameters (tens of nanoseconds each), because `parameter.data =
    other` is the one change that no guard of Dynamo sees. A group where that happened is released, which
    recompiles the model to separate GEMMs for it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.report: MergeReport | None = None
        self._model = model
        self._groups: tuple[PackedGroup, ...] = ()
        self._parameters: tuple[torch.Tensor, ...] = ()
        self._addresses: tuple[int, ...] = ()

    def __call__(
        self, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> MergeReport:
        """Merge, or check that the merge still holds; gives the report of the merge."""
        if self.report is None:
            self.report = prepare(self._model, args, kwargs)
            self._groups = packed_groups(self._model)
            self._remember()
        elif tuple(map(torch.Tensor.data_ptr, self._parameters)) != self._addresses:
            for group in self._groups:
                group.release_if_broken()
            self._remember()
        return self.report

    def _remember(self) -> None:
        slots = [member.kernelweld_slot for group in self._groups for member in group.members]
        held = [parameter for slot in slots if slot for parameter in (slot.weight, slot.bias)]
        self._parameters = tuple(parameter for parameter in held if parameter is not None)
        self._addresses = tuple(map(torch.Tensor.data_ptr, self._parameters))
