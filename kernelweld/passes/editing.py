"""Pipelines made of others: passes put in before ``lower``, and another ``lower``."""

from __future__ import annotations

from collections.abc import Sequence

from kernelweld.passes.base import Pass

Passes = tuple[Pass, ...]


def lower_of(passes: Sequence[Pass]) -> Pass | None:
    """The pass that carries out the plan, None if there is none."""
    return next((one for one in passes if one.name == "lower"), None)


def before_lower(passes: Sequence[Pass], *new: Pass) -> Passes:
    """``passes`` with ``new`` before ``lower``, at the end where there is none."""
    at = _place_of_lower(passes)
    return (*passes[:at], *new, *passes[at:])


def on_the_plan(passes: Sequence[Pass], *new: Pass) -> Passes:
    """``passes`` with ``new`` before ``lower`` and the verification of welds in front of it."""
    at = _place_of_lower(passes)
    while at > 0 and passes[at - 1].name == "verify-welds":
        at -= 1
    return (*passes[:at], *new, *passes[at:])


def lowered_by(passes: Sequence[Pass], lower: Pass | None) -> Passes:
    """``passes`` with ``lower`` in place of one of theirs without options."""
    return tuple(lower if lower is not None and one == type(lower)() else one for one in passes)


def _place_of_lower(passes: Sequence[Pass]) -> int:
    return next((i for i, one in enumerate(passes) if one.name == "lower"), len(passes))
