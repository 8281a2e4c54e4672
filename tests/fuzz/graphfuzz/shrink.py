"""Makes a failing program smaller while it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from graphfuzz.program import Input, Line, Program, Value

T = TypeVar("T")


def shrunk(program: Program, fails: Callable[[Program], bool], attempts: int = 400) -> Program:
    """The smallest program found within ``attempts`` runs; ``fails`` must hold for ``program``."""
    candidates = _candidates(program)
    while attempts:
        candidate = next(candidates, None)
        if candidate is None:
            break
        attempts -= 1
        if fails(candidate):
            program, candidates = candidate, _candidates(candidate)
    return program


def _candidates(program: Program) -> Iterator[Program]:
    """Programs that are smaller by one step, the boldest first."""
    if program.writes:
        yield replace(program, writes=()).pruned()
    if len(program.outputs) > 1:
        yield from (replace(program, outputs=(output,)).pruned() for output in program.outputs)
        yield from (replace(program, outputs=_without(program.outputs, o)).pruned() for o in program.outputs)
    for line in reversed(program.lines):
        if all(result.like.is_contiguous() for result in line.results):
            yield _given(program, line)
    for line in program.lines:
        for operand in line.operands:
            if len(line.results) == 1 and _alike(operand, line.results[0]):
                yield _left_out(program, line, operand)


def _given(program: Program, line: Line) -> Program:
    """The results of ``line`` become inputs."""
    inputs = tuple(Input(r, f"r({', '.join(map(str, r.shape))}).to({r.dtype})") for r in line.results)
    lines = _without(program.lines, line)
    return replace(program, inputs=(*program.inputs, *inputs), lines=lines).pruned()


def _left_out(program: Program, line: Line, operand: Value) -> Program:
    """``operand`` takes the place of the result of ``line``."""
    (result,) = line.results

    def other(value: Value) -> Value:
        return operand if value is result else value

    lines = tuple(
        replace(rest, operands=tuple(map(other, rest.operands))) for rest in _without(program.lines, line)
    )
    outputs = tuple(dict.fromkeys(map(other, program.outputs)))
    writes = tuple((target, other(value)) for target, value in program.writes)
    return replace(program, lines=lines, outputs=outputs, writes=writes).pruned()


def _alike(a: Value, b: Value) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _without(items: tuple[T, ...], gone: T) -> tuple[T, ...]:
    return tuple(item for item in items if item is not gone)
