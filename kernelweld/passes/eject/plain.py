"""The same in torch: ``reference``, and for a weld that writes caches the steps that it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import fx

from kernelweld.passes.eject.caches import part_of, strided_lines, write_lines
from kernelweld.passes.eject.layout import flat, statement
from kernelweld.passes.eject.reference import Reference, outputs_of
from kernelweld.passes.eject.subject import Given, Subject
from kernelweld.passes.eject.wrapper import result_type, returned, signature, sizes


@dataclass(frozen=True)
class Write:
    """One write to a cache: the function that writes its rows, and the expression of the part written to."""

    function: str
    cache: Given
    part: str
    operands: int
    lines: tuple[str, ...]
    part_lines: tuple[str, ...]


def writes_of(subject: Subject) -> tuple[Write, ...]:
    """The writes of the weld; those that put rows to their places alike share a function."""
    names: dict[tuple[str, ...], str] = {}
    found = []
    for part, ranks in zip(subject.one.caches, _ranks(subject), strict=True):
        lines = tuple(write_lines(part.word, part, ranks))
        count = len(names)
        name = names.setdefault(lines, "_write_rows" if not count else f"_write_rows_{count + 1}")
        cache = subject.inputs[part.cache]
        text = part_of(part, subject)
        apart = tuple(strided_lines(part, cache)) if text.startswith("_part_of_") else ()
        found.append(Write(name, cache, text, part.operands, lines, apart))
    return tuple(found)


def _ranks(subject: Subject) -> Iterator[list[int]]:
    """The dimensions of the rows and the indices of each write."""
    nodes = iter(_outputs(subject)[len(subject.outputs) :])
    for part in subject.one.caches:
        yield [node.meta["val"].dim() for node in islice(nodes, part.operands)]


def _outputs(subject: Subject) -> list[fx.Node]:
    return outputs_of(subject.one.computed.graph)


def plain_text(subject: Subject) -> str:
    """All functions of the same in torch."""
    writes = writes_of(subject)
    body = Reference(
        subject.one.computed.graph, subject.placeholders(), _names(subject, writes), subject.device
    )
    if not writes:
        end = [*body.lines, *statement(f"return {', '.join(map(flat, body.returned))}", 4)]
        return "\n".join([*_head(subject, "reference", None, _REPLACED, end), *end])
    results = ", ".join(map(flat, body.returned))
    end = [*body.lines, *statement(f"return ({results})", 4)]
    head = _head(subject, "computed", "tuple[torch.Tensor, ...]", _COMPUTED, end)
    return "\n".join([*head, *end, "", "", *_write_functions(writes), *_reference(subject, writes)])


_REPLACED = "The same in torch: the operations that the kernel replaces."
_COMPUTED = "The results, and the rows and places of each write to a cache, in torch."


def _names(subject: Subject, writes: Sequence[Write]) -> list[str | None]:
    """Names of what is computed: results, rows; places have those that they have."""
    names: list[str | None] = [made.name for made in subject.outputs]
    for number, write in enumerate(writes, 1):
        names.append("rows" if len(writes) == 1 else f"rows_{number}")
        names += [None] * (write.operands - 1)
    return names


def _head(subject: Subject, name: str, result: str | None, docstring: str, body: Sequence[str]) -> list[str]:
    used = sizes(subject, "\n".join(body))
    return [*signature(subject, name, result), f'    """{docstring}"""', *used]


def _write_functions(writes: Sequence[Write]) -> Iterator[str]:
    seen = set()
    for write in writes:
        if write.function not in seen:
            seen.add(write.function)
            names = ("index", "index2")[: write.operands - 1]
            arguments = ", ".join(f"{name}: torch.Tensor" for name in ("part", "rows", *names))
            yield f"def {write.function}({arguments}) -> None:"
            yield '    """Puts rows to their places in a part of a cache."""'
            yield from write.lines
            yield from ("", "")
    for lines in dict.fromkeys(write.part_lines for write in writes if write.part_lines):
        yield from (*lines, "", "")


def _reference(subject: Subject, writes: Sequence[Write]) -> Iterator[str]:
    yield from _head_without_sizes(subject)
    names = [given.name for given in subject.inputs] + [size.name for size in subject.free]
    results = [made.name for made in subject.outputs]
    operands = _operands(writes)
    flat_operands = [name for one in operands for name in one]
    yield from statement(f"found = computed({', '.join(names)})", 4)
    yield from statement(f"{', '.join([*results, *flat_operands])} = found", 4)
    for write, one in zip(writes, operands, strict=True):
        yield from statement(f"{write.function}({write.part}, {', '.join(one)})", 4)
    yield from returned(subject)


def _head_without_sizes(subject: Subject) -> list[str]:
    docstring = "The same in torch. Writes to the caches in place."
    return [*signature(subject, "reference", result_type(subject)), f'    """{docstring}"""']


def _operands(writes: Sequence[Write]) -> list[list[str]]:
    """Names for the rows and places of each write."""
    found = []
    for number, write in enumerate(writes, 1):
        suffix = "" if len(writes) == 1 else f"_{number}"
        found.append([f"{name}{suffix}" for name in ("rows", "index", "index2")[: write.operands]])
    return found
