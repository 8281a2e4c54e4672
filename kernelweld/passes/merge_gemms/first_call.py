"""What a compiled model does before each call: merge once, then make sure that no slice went stale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from kernelweld.passes.merge_gemms.group import PackedGroup
from kernelweld.passes.merge_gemms.merge import packed_groups, prepare
from kernelweld.passes.merge_gemms.report import MergeReport

#: Address, shape and strides of a parameter.
_Place = tuple[int, torch.Size, tuple[int, ...]]


class MergeOnFirstCall:
    """Call it with the arguments of every call of the compiled model, before the model.

    On the first call there are example inputs and nothing is traced yet: it runs `prepare`. Later calls
    compare where the packed parameters are and how they are laid out (some hundred nanoseconds each), because
    `parameter.data = other` is the one change that no guard of Dynamo sees. A group where that happened is
    released, which recompiles the model to separate GEMMs for it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.report: MergeReport | None = None
        self._model = model
        self._groups: tuple[PackedGroup, ...] = ()
        self._parameters: tuple[torch.Tensor, ...] = ()
        self._places: list[_Place] = []

    def __call__(
        self, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> MergeReport:
        """Merge, or check that the merge still holds; gives the report of the merge."""
        if self.report is None:
            self.report = prepare(self._model, args, kwargs)
            self._groups = packed_groups(self._model)
            self._remember()
        elif list(map(_place, self._parameters)) != self._places:
            for group in self._groups:
                group.release_if_broken()
            self._remember()
        return self.report

    def _remember(self) -> None:
        self._parameters = tuple(p for group in self._groups for p in group.packed_parameters)
        self._places = list(map(_place, self._parameters))


def _place(parameter: torch.Tensor) -> _Place:
    return parameter.data_ptr(), parameter.shape, parameter.stride()
