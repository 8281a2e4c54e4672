"""Merge named groups of linears, find and merge them all, and undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import nn

from kernelweld.passes.merge_gemms.eligible import tied_parameters, why_not_together, why_tied
from kernelweld.passes.merge_gemms.group import PackedGroup
from kernelweld.passes.merge_gemms.linear import PackedLinear, bias_of
from kernelweld.passes.merge_gemms.report import MergedGroup, MergeReport, SkippedGroup
from kernelweld.passes.merge_gemms.siblings import find_siblings
from kernelweld.passes.merge_gemms.storage import row_offsets


def merge_gemms(model: nn.Module, groups: Sequence[Sequence[str]]) -> MergeReport:
    """Make the weights of each group of module paths views of one packed storage.

    The siblings of a group should be called on one input: then a compiler that shares equal expressions
    runs one GEMM for all of them. Modules and parameters stay the same objects with the same values, names
    and flags; no memory is added beyond alignment; eager results keep their bits. A group that cannot be
    merged is reported and left as it is. Merging a group again changes nothing.
    """
    tied = tied_parameters(model)
    outcomes = [_merge(model, tuple(group), tied) for group in groups]
    return MergeReport(
        merged=tuple(outcome for outcome in outcomes if isinstance(outcome, MergedGroup)),
        skipped=tuple(outcome for outcome in outcomes if isinstance(outcome, SkippedGroup)),
    )


def prepare(
    model: nn.Module, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
) -> MergeReport:
    """Find the siblings of `model(*args, **kwargs)` and merge them. To be run before the model is traced."""
    siblings = find_siblings(model, args, kwargs)
    report = merge_gemms(model, siblings.groups)
    return MergeReport(report.merged, siblings.skipped + report.skipped)


def unmerge(model: nn.Module) -> tuple[str, ...]:
    """Make every packed linear of the model a plain `nn.Linear` with memory of its own; gives their paths."""
    packed = {path: module for path, module in model.named_modules() if isinstance(module, PackedLinear)}
    for group in packed_groups(model):
        group.dissolve()
    return tuple(packed)


def packed_groups(model: nn.Module) -> tuple[PackedGroup, ...]:
    """The groups that the model's packed linears belong to, released ones included."""
    members = (module for module in model.modules() if isinstance(module, PackedLinear))
    return tuple(dict.fromkeys(member.kernelweld_group for member in members))


def _merge(model: nn.Module, paths: tuple[str, ...], tied: Mapping[int, str]) -> MergedGroup | SkippedGroup:
    modules = dict(model.named_modules(remove_duplicate=False))
    unknown = [path for path in paths if path not in modules]
    if unknown:
        return SkippedGroup(paths, f"the model has no module {', '.join(unknown)}")
    linears = [cast(nn.Linear, modules[path]) for path in paths]
    if len(set(linears)) < max(2, len(linears)):
        return SkippedGroup(paths, "takes two or more different linears")
    if not _is_packed(linears):
        reason = why_not_together(linears) or next(filter(None, (why_tied(m, tied) for m in linears)), None)
        if reason is not None:
            return SkippedGroup(paths, reason)
        PackedGroup(linears)
    return _describe(paths, linears)


def _is_packed(linears: Sequence[nn.Linear]) -> bool:
    first = linears[0]
    if not isinstance(first, PackedLinear):
        return False
    return first.kernelweld_group.members == tuple(linears) and first.kernelweld_group.is_true


def _describe(paths: tuple[str, ...], linears: Sequence[nn.Linear]) -> MergedGroup:
    weights = [linear.weight for linear in linears]
    return MergedGroup(
        paths=paths,
        out_features=tuple(weight.shape[0] for weight in weights),
        in_features=weights[0].shape[1],
        rows=row_offsets(weights)[-1],
        dtype=str(weights[0].dtype).removeprefix("torch."),
        bias=bias_of(linears[0]) is not None,
    )
