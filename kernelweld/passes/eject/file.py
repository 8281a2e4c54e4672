"""The whole text of an ejected file."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import triton

from kernelweld.codegen.task import Apply, RowTask
from kernelweld.codegen.traffic import moved_bytes
from kernelweld.codegen.writer import brief
from kernelweld.ir.word import Word
from kernelweld.passes.eject import templates
from kernelweld.passes.eject.checks import tests_text
from kernelweld.passes.eject.drawing import draw_text
from kernelweld.passes.eject.kernel_text import kernel_text
from kernelweld.passes.eject.layout import WIDTH, statement
from kernelweld.passes.eject.plain import plain_text
from kernelweld.passes.eject.sources import by_file
from kernelweld.passes.eject.subject import Subject, subject
from kernelweld.passes.eject.wrapper import CHECK, wrapper_text
from kernelweld.passes.verification.specimen import Specimen


@dataclass(frozen=True)
class Provenance:
    """Where a weld comes from: the target in words, how many welds of it share the kernel, and the version of
    kernelweld. ``module`` is the name of the file that it goes to.
    """

    target: str
    count: int
    version: str
    module: str


def words_of(one: Specimen) -> tuple[str, ...]:
    """The words of a weld with those of their fields that are not the usual ones."""
    words = [step.word for task in one.program.tasks for step in task.steps if isinstance(step, Apply)]
    return tuple(brief(word) for word in (*words, *(part.word for part in one.caches)))


def sources_of(one: Specimen) -> tuple[str, ...]:
    """The lines of the model that a weld replaces, in order."""
    return tuple(dict.fromkeys(line for task in one.program.tasks for line in task.sources))


def eject(one: Specimen, name: str, origin: Provenance) -> str:
    """The file of the weld ``one`` as the function ``name``: kernel, function, the same in torch, test and
    benchmark.
    """
    found = subject(one, name)
    code = "\n\n\n".join(part.strip("\n") for part in _parts(found))
    return "\n".join([_docstring(found, origin), "", *_imports(code), "", "", f"{code}\n"])


def _parts(found: Subject) -> Iterator[str]:
    yield kernel_text(found)
    yield CHECK
    yield wrapper_text(found)
    yield plain_text(found)
    yield draw_text(found)
    yield tests_text(found)
    yield _benchmark(found)


def _benchmark(found: Subject) -> str:
    moved = moved_bytes(found.one.program)
    used = [s for s in found.sizes if s.symbol in {x.name for x in moved.free_symbols}]
    read = "".join(
        f"    {s.name} = {_of_arguments(s.read)}\n" if s.read else f"    {s.name} = {s.traced}\n"
        for s in used
    )
    size = found.any_size
    how = (
        "" if size is None else f'    sizes = {{"{size.name}": int(sys.argv[1])}} if sys.argv[1:] else {{}}\n'
    )
    given = "" if size is None else ", **sizes"
    return templates.BENCHMARK.format(sizes=how, given=given, moved=found.spelled(moved), read=read)


def _of_arguments(read: str) -> str:
    """``x.shape[0]`` of a dictionary of arguments."""
    name, _, rest = read.partition(".")
    return f'arguments["{name}"].{rest}'


_FROM = {
    "from collections.abc import {}": ("Callable", "Iterator"),
    "from contextlib import {}": ("contextmanager",),
    "from typing import {}": ("ClassVar",),
}


def _imports(code: str) -> Iterator[str]:
    yield from ("from __future__ import annotations", "", "import sys")
    for line, names in _FROM.items():
        used = [name for name in names if re.search(rf"\b{name}\b", code)]
        if used:
            yield line.format(", ".join(used))
    yield from ("", "import torch", "import triton", "import triton.language as tl")
    yield "from torch.overrides import TorchFunctionMode"


def _docstring(found: Subject, origin: Provenance) -> str:
    lines = [
        *_what(found),
        *_replaces(sources_of(found.one)),
        *_use(found, origin.module),
        *_how(found, origin.module),
        *_where(origin),
    ]
    return "\n".join(['"""' + lines[0], *lines[1:], '"""'])


def _what(found: Subject) -> Iterator[str]:
    titles = dict.fromkeys(task.title for task in found.one.program.tasks)
    yield from _wrapped(f"{', '.join(titles)} in one Triton kernel.", 0)
    yield ""
    yield "What it computes, in float32 and rounded where the model rounds:"
    yield ""
    writes = iter(found.one.caches)
    for task in found.one.program.tasks:
        for word in _words(task, writes):
            yield from _wrapped(f"{word[0]}", 4)
            yield from _wrapped(word[1], 8)
    yield ""


def _words(task: RowTask, writes: Iterator[object]) -> Iterator[tuple[str, str]]:
    """The words of a chain, each with what it means; other steps by their names."""
    applied = {step.word.kind: step.word for step in task.steps if isinstance(step, Apply)}
    for kind in task.title.split(" -> "):
        word = applied.get(kind)
        if word is None and kind == "cache_write":
            word = getattr(next(writes, None), "word", None)
        if isinstance(word, Word):
            yield brief(word), _summary(word)
        else:
            yield kind, "elementwise" if kind != "concat" else "joined along the last dimension"


def _summary(word: Word) -> str:
    """The first sentence of what the word says of itself."""
    text = " ".join((type(word).__doc__ or "").split("\n\n")[0].split())
    return text.replace("``", "")


def _replaces(sources: Sequence[str]) -> Iterator[str]:
    if not sources:
        return
    yield "It replaces these lines of the model:"
    yield ""
    for path, lines in by_file(sources).items():
        yield f"    {path}"
        for number, text in lines:
            line = f"        {number:>5}  {_safe(text)}".rstrip()
            yield line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rstrip()} ..."
    yield ""


def _safe(text: str) -> str:
    """A line of source that can stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _use(found: Subject, module: str) -> Iterator[str]:
    names = ", ".join([given.name for given in found.inputs] + [size.name for size in found.free])
    results = ", ".join(made.name for made in found.outputs)
    yield "Use:"
    yield ""
    yield from _import(module, found.name)
    yield ""
    yield from statement(f"{results} = {found.name}({names})" if results else f"{found.name}({names})", 4)
    yield ""
    yield from _wrapped(_sizes(found), 0)
    yield ""


def _import(module: str, name: str) -> list[str]:
    line = f"    from {module} import {name}"
    return [line] if len(line) <= WIDTH else [f"    from {module} import (", f"        {name},", "    )"]


def _sizes(found: Subject) -> str:
    """What sizes the kernel takes."""
    if not found.sizes:
        return "It was captured with fixed sizes: other shapes or strides are refused."
    names = ", ".join(f"{size.name} of {size.least} or more" for size in found.sizes)
    return f"Any {names}; all other sizes are fixed, and others are refused."


def _how(found: Subject, module: str) -> Iterator[str]:
    yield "Test it, on a CPU with TRITON_INTERPRET=1 or on a GPU without it, and time it on a GPU:"
    yield ""
    yield f"    pytest {module}.py"
    size = "" if found.any_size is None else f" [{found.any_size.name}]"
    yield f"    python {module}.py{size}"
    yield ""


def _where(origin: Provenance) -> Iterator[str]:
    welds = "one weld" if origin.count == 1 else f"{origin.count} welds"
    versions = f"torch {torch.__version__} and triton {triton.__version__}"
    text = f"Generated by kernelweld {origin.version} with {versions}, for {welds} of {origin.target}."
    yield from _wrapped(text, 0)


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=margin,
        subsequent_indent=margin + " " * 4 * (indent == 4),
        break_long_words=False,
    )
