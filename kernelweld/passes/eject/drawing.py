"""Random arguments that make sense: weights around one, positive scales, places that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy
import torch

from kernelweld.codegen.expressions import spell
from kernelweld.codegen.task import Load
from kernelweld.ir import CacheWrite
from kernelweld.passes.eject.layout import expression as parsed
from kernelweld.passes.eject.layout import opened
from kernelweld.passes.eject.subject import Given, Subject
from kernelweld.passes.eject.wrapper import is_contiguous

HELPERS: Mapping[str, str] = {
    "_normal": '''
def _normal(generator: torch.Generator, shape: tuple, dtype: torch.dtype) -> torch.Tensor:
    """Normal values around zero, every other seed's as small as an epsilon can be seen beside."""
    small = 1e-3 if generator.initial_seed() % 2 else 1.0
    return (small * torch.randn(shape, generator=generator)).to(dtype)
''',
    "_positive": '''
def _positive(
    generator: torch.Generator,
    shape: tuple,
    dtype: torch.dtype,
    least: float,
) -> torch.Tensor:
    """Values from ``least`` to five times that."""
    return ((1 + 4 * torch.rand(shape, generator=generator)) * least).to(dtype)
''',
    "_integers": '''
def _integers(
    generator: torch.Generator,
    shape: tuple,
    dtype: torch.dtype,
    end: int,
) -> torch.Tensor:
    """Whole numbers from 0 to ``end`` - 1."""
    return torch.randint(0, end, shape, generator=generator).to(dtype)
''',
    "_strided": '''
def _strided(memory: torch.Tensor, shape: tuple, strides: tuple, device: str) -> torch.Tensor:
    """A tensor with these strides in ``memory``."""
    return memory.to(device).as_strided(shape, strides)
''',
}

_WEIGHTS = ("weight",)
_SCALES = {"scale": 0.01, "tensor_scale": 0.5, "upper": 0.5}


@dataclass(frozen=True)
class Places:
    """How the indices of writes are drawn: lines before, and by input the expression of its places."""

    lines: tuple[str, ...]
    expressions: Mapping[int, str]


def draw_text(subject: Subject) -> str:
    """The function ``draw``, and the helpers that it calls."""
    places = _places(subject)
    body = list(places.lines)
    items = []
    for number, given in enumerate(subject.inputs):
        items.append((given.name, places.expressions.get(number) or _value(given, subject)))
    lines = [*_signature(subject), *body, "    arguments = {"]
    for name, text in items:
        lines += opened(f'"{name}": ', parsed(text), ",", 8)
    lines += ["    }", "    return {name: tensor.to(device) for name, tensor in arguments.items()}"]
    text = "\n".join(lines)
    helpers = [source.strip() for name, source in HELPERS.items() if f"{name}(" in text]
    return "\n\n\n".join([*helpers, text])


def _signature(subject: Subject) -> Iterator[str]:
    sizes = [f"{size.name}: int = {size.traced}" for size in subject.sizes]
    arguments = ", ".join(["seed: int", "device: str", *sizes])
    yield f"def draw({arguments}) -> dict[str, torch.Tensor]:"
    yield '    """Random arguments that make sense."""'
    yield "    generator = torch.Generator().manual_seed(seed)"


def _value(given: Given, subject: Subject) -> str:
    dense, dtype = is_contiguous(given), given.dtype
    shape = subject.tuple_of(given.shape if dense else (_extent(given),))
    if dtype.is_floating_point:
        text = _float(given, f"generator, {shape}, {dtype}")
    else:
        end = "2" if dtype == torch.bool else _end(given, subject)
        text = f"_integers(generator, {shape}, {dtype}, {end})"
    if dense:
        return text
    how = f"{subject.tuple_of(given.shape)}, {subject.tuple_of(given.strides)}"
    return f"_strided({text}, {how}, device)"


def _extent(given: Given) -> sympy.Expr:
    """The elements of memory from the first to the last."""
    steps = [(size - 1) * stride for size, stride in zip(given.shape, given.strides, strict=True)]
    return sympy.expand(sympy.Add(1, *steps))


def _float(given: Given, how: str) -> str:
    role = given.argument.removesuffix("_ptr").rstrip("0123456789")
    if role in _SCALES:
        return f"_positive({how}, {_SCALES[role]})"
    if role in _WEIGHTS:
        return f"_positive({how}, 0.5)"
    return f"_normal({how})"


def _end(given: Given, subject: Subject) -> str:
    """Behind the largest number: of a table's rows for positions, of a byte, or 2, which any table has."""
    if given.is_cache:
        return str(torch.iinfo(given.dtype).max + 1)
    for task in subject.one.program.tasks:
        loaded = {s.out: s.operand.name for s in task.steps if isinstance(s, Load)}
        for step in task.steps:
            if isinstance(step, Load):
                for index in step.operand.indices:
                    if loaded.get(index.value) == given.argument and index.sizes:
                        return subject.renamed(spell(index.sizes[0]))
    return "2"


def _places(subject: Subject) -> Places:
    """Places of which no two are the same; where below zero is nowhere, the last one is."""
    lines: list[str] = []
    expressions: dict[int, str] = {}
    for places, part in zip(subject.one.places, subject.one.caches, strict=True):
        if any(index is None or index[0] in expressions for index in places.indices):
            continue
        name = "slots" if not lines else f"slots_{len(lines) + 1}"
        described = [index for index in places.indices if index is not None]
        given = subject.inputs[described[0][0]]
        lines_of_count, count = _spelled_count(given, subject, name)
        total = _count(places.sizes)
        if _count(described[0][1]) > _count(places.sizes):  # some would be drawn twice
            continue
        lines += [*lines_of_count, f"    {name} = torch.randperm({total}, generator=generator)[:{count}]"]
        if part.word.negative == "nowhere":
            lines.append(f"    {name}[-1:] = -1  # nowhere: of a padded batch")
        if part.word.negative == "end":
            lines.append(f"    {name}[:1] -= {total}  # counted from the end")
        split = len(described) > 1
        parts = (f"{name} // {places.sizes[1]}", f"{name} % {places.sizes[1]}") if split else (name,)
        for index, text in zip(described, parts, strict=True):
            target = subject.inputs[index[0]]
            grouped = f"({text})" if " " in text else text
            expressions[index[0]] = _placed(target, grouped, part.word, subject)
    return Places(tuple(lines), expressions)


def _spelled_count(given: Given, subject: Subject, name: str) -> tuple[list[str], str]:
    """How many places an argument holds, after the statements for it."""
    count = subject.spelled(sympy.prod(given.shape, start=sympy.Integer(1)))
    return (
        ([], count)
        if count.isidentifier() or count.isdigit()
        else ([f"    {name}_count = {count}"], f"{name}_count")
    )


def _placed(given: Given, text: str, word: CacheWrite, subject: Subject) -> str:
    shaped = text if len(given.shape) == 1 else f"{text}.reshape({subject.tuple_of(given.shape)})"
    cast = shaped if given.dtype == torch.int64 else f"{shaped}.to({given.dtype})"
    if is_contiguous(given):
        return cast
    how = f"{subject.tuple_of(given.shape)}, {subject.tuple_of(given.strides)}"
    return f"torch.empty_strided({how}, dtype={given.dtype}, device=device).copy_({cast})"


def _count(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count
