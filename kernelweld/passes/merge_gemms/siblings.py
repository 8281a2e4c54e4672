"""Find sibling linears by watching which linears read the same input; no model's names are known here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import nn

from kernelweld.passes.merge_gemms.eligible import kind, tied_parameters, why_not_linear, why_tied
from kernelweld.passes.merge_gemms.recorder import InputKey, Recording, record
from kernelweld.passes.merge_gemms.report import SkippedGroup


@dataclass(frozen=True)
class Siblings:
    """Groups of module paths that can be merged, in call order, and linears on one input that cannot."""

    groups: tuple[tuple[str, ...], ...] = ()
    skipped: tuple[SkippedGroup, ...] = ()


def find_siblings(
    model: nn.Module, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
) -> Siblings:
    """Run a fake copy of `model(*args, **kwargs)` once and group the linears that read the same rows.

    Nothing is computed, and neither the model nor the arguments (a KV cache, say) change: both are
    deep-copied onto fake tensors. A model that cannot run that way gives no groups and one reason. A linear
    joins a group only when it ran exactly once, so a branch not taken never does.
    """
    try:
        recording = record(model, args, kwargs or {})
    except Exception as error:  # the user's code may raise anything on fake tensors, and still must run
        lines = str(error).splitlines() or [""]
        reason = f"the model does not run on fake tensors: {type(error).__name__}: {lines[0]}"
        return Siblings(skipped=(SkippedGroup((), reason),))
    return group_calls(model, recording)


def group_calls(model: nn.Module, recording: Recording) -> Siblings:
    """Group what was recorded of `model`: by input, then by what a shared weight needs in common."""
    reasons = _reasons(model, recording)
    groups: list[tuple[str, ...]] = []
    skipped: list[SkippedGroup] = []
    for paths in _by_input(recording.calls):
        kinds: dict[object, list[str]] = {}
        refused: dict[str, list[str]] = {}
        for path in paths:
            if path in reasons:
                refused.setdefault(reasons[path], []).append(path)
            else:
                kinds.setdefault(kind(cast(nn.Linear, model.get_submodule(path))), []).append(path)
        groups += [tuple(same) for same in kinds.values() if len(same) > 1]
        skipped += [SkippedGroup(tuple(same), reason) for reason, same in refused.items()]
    return Siblings(tuple(groups), tuple(skipped))


def _by_input(calls: Iterable[tuple[str, InputKey]]) -> list[tuple[str, ...]]:
    """Paths of the linears that read the same rows, where there are at least two."""
    readers: dict[InputKey, dict[str, None]] = {}
    for path, key in calls:
        readers.setdefault(key, {})[path] = None
    return [tuple(paths) for paths in readers.values() if len(paths) > 1]


def _reasons(model: nn.Module, recording: Recording) -> dict[str, str]:
    """Why a linear may not be merged, by path."""
    times = Counter(path for path, _ in recording.calls)
    tied = tied_parameters(model)
    found: dict[str, str] = {}
    for path, count in times.items():
        linear = model.get_submodule(path)
        reason = (
            why_not_linear(linear)
            or why_tied(linear, tied)
            or (f"runs {count} times in one forward" if count > 1 else None)
            or recording.objections.get(path)
        )
        if reason is not None:
            found[path] = reason
    return found
