"""The test of an ejected file: its kernel held to the contract against ``reference``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from kernelweld.codegen.task import Apply, Elementwise, Reduce
from kernelweld.ir import E2M1, E4M3, E8M0, Quant, QuantScale, ResidualAdd, Rope
from kernelweld.passes.eject import templates
from kernelweld.passes.eject.layout import statement
from kernelweld.passes.eject.operators import bits_of
from kernelweld.passes.eject.plain import Write, writes_of
from kernelweld.passes.eject.subject import Subject

_DRAWS = 3

#: Words of which every operation is rounded once, in torch and in the kernel alike.
_EXACT = (QuantScale, Quant, E8M0, E4M3, E2M1, ResidualAdd, Rope)
_EXACT_STEPS = frozenset(("add", "sub", "mul", "neg", "abs", "cast", "maximum", "minimum"))
_CODES = ("quant_out", "e2m1_out", "e8m0_out", "e4m3_out")


def tests_text(subject: Subject) -> str:
    """The functions of the test, and the tests."""
    writes = writes_of(subject)
    parts = [_names(subject), templates.INTERPRETER, _float64(subject), templates.CONTRACT, templates.DEVICE]
    if writes:
        parts += [templates.MARKED, _cache_test(subject, writes)]
    else:
        parts.append(templates.TEST.format(**_drawn(subject)))
    parts.append(templates.TEST_INPUTS)
    if (codes := _codes(subject)) is not None:
        parts.append(codes)
    parts.append(templates.TEST_BAD)
    return "\n\n\n".join(part.strip("\n") for part in parts)


def _drawn(subject: Subject) -> dict[str, str]:
    """What the tests draw: several seeds, and as many sizes if there is one that may be any."""
    if subject.any_size is None:
        return {"sizes": "", "draws": f"range({_DRAWS})", "given": ""}
    return {"sizes": ", sizes", "draws": "enumerate(_SIZES)", "given": ", **sizes"}


def _other_sizes(subject: Subject) -> list[str]:
    """The statement of the sizes that are drawn: as traced, the least, and another with places enough."""
    size = subject.any_size
    if size is None:
        return []
    places = [math.prod(one.sizes) for one in subject.one.places]
    numbers = (size.traced, size.least, min([2 * size.traced + 1, *places]))
    drawn = [f'{{"{size.name}": {number}}}' for number in numbers]
    return statement(f"_SIZES = ({', '.join(drawn)})")


def _names(subject: Subject) -> str:
    """The function that is tested, its results, and the arguments that it only reads."""
    results = _tuple(made.name for made in subject.outputs)
    read = _tuple(given.name for given in subject.inputs if not given.is_cache)
    lines = [f"_weld = {subject.name}", *statement(f"_RESULTS = {results}"), *statement(f"_READ = {read}")]
    lines += _other_sizes(subject)
    return "\n".join(["#: What is tested, its results, and the arguments that it only reads.", *lines])


def _float64(subject: Subject) -> str:
    found = bits_of(list(subject.one.computed.graph.nodes))
    table = ", ".join(f"{seen}: {held}" for seen, held in found.items())
    bits = f"\n    _BITS: ClassVar[dict[torch.dtype, torch.dtype]] = {{{table}}}\n" if found else ""
    return templates.FLOAT64.format(bits=bits, view=templates.VIEW_BITS if found else "")


def _tuple(items: Iterable[str]) -> str:
    """A tuple of strings."""
    texts = [f'"{item}"' for item in items]
    if not texts:
        return "()"
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _cache_test(subject: Subject, writes: tuple[Write, ...]) -> str:
    lines = "\n".join(_parts(writes))
    drawn = _drawn(subject)
    lines = lines.replace("draw(seed, device)", f"draw(seed, device{drawn['given']})")
    return templates.TEST_CACHES.format(**drawn, count=len(subject.outputs), writes=lines)


def _parts(writes: tuple[Write, ...]) -> Iterator[str]:
    """For each write the part as the kernel, torch and float64 have it; then the bytes of no part."""
    for write, rest in zip(writes, _operands(writes), strict=True):
        yield from statement(f"part = {_part(write, 'exact')}", 8)
        yield "        part = part.double()"
        yield from statement(f"{write.function}(part, {', '.join(rest)})", 8)
        found = ", ".join(_part(write, side) for side in ("found", "own"))
        yield from statement(f'_never_worse("rows of {write.cache.name}", {found}, part)', 8)
    yield "        marks = draw(seed, device)"
    for cache in dict.fromkeys(write.cache.name for write in writes):
        yield f'        marks["{cache}"].zero_()'
    for write, (rows, *places) in zip(writes, _operands(writes), strict=True):
        yield from statement(f"part = {_part(write, 'marks')}", 8)
        marked = f"_every_bit({rows}, part.dtype)"
        yield from statement(f"{write.function}(part, {', '.join([marked, *places])})", 8)
    for cache in dict.fromkeys(write.cache.name for write in writes):
        yield f'        untouched = _bytes(marks["{cache}"]) == 0'
        after, before = (f'_bytes({side}["{cache}"])[untouched]' for side in ("found", "exact"))
        yield from statement(f"assert torch.equal({after}, {before})", 8)


def _operands(writes: tuple[Write, ...]) -> list[list[str]]:
    """The rows and places of each write, among what is computed in float64."""
    found, at = [], 0
    for write in writes:
        found.append([f"rest[{at + i}]" for i in range(write.operands)])
        at += write.operands
    return found


def _part(write: Write, side: str) -> str:
    """The part written to, of the caches of one side."""
    return re.sub(rf"\b{write.cache.name}\b", f'{side}["{write.cache.name}"]', write.part)


def _codes(subject: Subject) -> str | None:
    """The test of codes, of a weld in which nothing is summed."""
    steps = [step for task in subject.one.program.tasks for step in task.steps]
    words = [step.word for step in steps if isinstance(step, Apply)]
    if not any(isinstance(word, (Quant, E2M1)) for word in words) or subject.caches:
        return None
    exact = all(isinstance(word, _EXACT) for word in words) and not any(isinstance(s, Reduce) for s in steps)
    if not exact or any(s.name not in _EXACT_STEPS for s in steps if isinstance(s, Elementwise)):
        return None
    names = [made.name for made in subject.outputs]
    codes = [i for i, name in enumerate(names) if name.startswith(_CODES)]
    scales = [i for i, name in enumerate(names) if name.startswith("quant_scale_out")]
    return templates.TEST_EXACT.format(**_drawn(subject), codes=codes, scales=scales)
