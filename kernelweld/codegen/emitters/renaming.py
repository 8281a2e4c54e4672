"""Slices and concatenations of the feature axis: registers get new names, nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence

from kernelweld.codegen.emitters.contract import Emitter
from kernelweld.codegen.layout import Alignment, Span, cuts
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.task import Concat, Slice, Value


def align_slice(step: Slice) -> Sequence[Alignment]:
    return (Alignment(step.out.width, (Span(step.out.name), Span(step.value.name, step.start, step.step))),)


def emit_slice(scope: Scope, step: Slice) -> None:
    _rename(scope, step.value, step.out, align_slice(step)[0], source=1)


def align_concat(step: Concat) -> Sequence[Alignment]:
    alignments, start = [], 0
    for value in step.values:
        alignments.append(Alignment(value.width, (Span(value.name), Span(step.out.name, start))))
        start += value.width
    return alignments


def emit_concat(scope: Scope, step: Concat) -> None:
    for value, alignment in zip(step.values, align_concat(step), strict=True):
        _rename(scope, value, step.out, alignment, source=0)


def _rename(scope: Scope, value: Value, out: Value, alignment: Alignment, source: int) -> None:
    here, there = alignment.spans[source], alignment.spans[1 - source]
    for cut in cuts(scope.frame.partitions, alignment):
        tile = scope.tile(value, cut.image(here.start, here.step))
        scope.bind(out, cut.image(there.start, there.step), tile)


SLICE = Emitter(align_slice, emit_slice)
CONCAT = Emitter(align_concat, emit_concat)
