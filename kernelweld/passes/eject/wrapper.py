"""The function around the kernel: its arguments are checked, its results made, the kernel launched."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelweld.passes.eject.kernel_text import kernel_name
from kernelweld.passes.eject.layout import listed, statement
from kernelweld.passes.eject.subject import Given, Made, Subject

CHECK = '''
def _check(
    name: str,
    tensor: torch.Tensor,
    shape: tuple,
    strides: tuple,
    dtype: torch.dtype,
) -> None:
    """Raises ValueError unless ``tensor`` is what the kernel was generated for."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} has to be a tensor, not {type(tensor).__name__}")
    if tensor.dtype != dtype or tensor.shape != shape:
        found, wanted = tuple(tensor.shape), f"{dtype} of shape {shape}"
        raise ValueError(f"{name} has to be {wanted}, not {tensor.dtype} of shape {found}")
    pairs = zip(shape, tensor.stride(), strides, strict=True)
    if tensor.numel() and any(size > 1 and found != wanted for size, found, wanted in pairs):
        raise ValueError(f"{name} has to have strides {strides}, not {tensor.stride()}")
'''


def wrapper_text(subject: Subject) -> str:
    """The function ``subject.name``."""
    body = [
        *_checks(subject),
        *(line for made in subject.outputs for line in _allocation(made, subject)),
        *_launch(subject),
        *returned(subject),
    ]
    head = [*signature(subject, subject.name), *_docstring(subject)]
    return "\n".join([*head, *sizes(subject, "\n".join(body)), *body])


def signature(subject: Subject, name: str, result: str | None = None) -> list[str]:
    """``def name(...)`` with a comment for each tensor."""
    width = max(len(given.name) for given in subject.inputs)
    lines = [f"def {name}("]
    for given in subject.inputs:
        argument = f"    {given.name}: torch.Tensor,"
        lines.append(f"{argument.ljust(width + 20)}  # {described(given, subject)}")
    lines = _unpadded(lines)
    lines += [f"    {size.name}: int," for size in subject.free]
    return [*lines, f") -> {result or result_type(subject)}:"]


def _unpadded(lines: list[str]) -> list[str]:
    """Comments two columns behind the code, as a formatter puts them."""
    return [
        f"{code.rstrip()}  # {text}" if text else code
        for code, _, text in (x.partition("  # ") for x in lines)
    ]


def described(one: Given | Made, subject: Subject) -> str:
    """Shape and dtype, and strides where they are not dense."""
    shape = ", ".join(map(subject.spelled, one.shape))
    text = f"[{shape}] {str(one.dtype).removeprefix('torch.')}"
    if not is_contiguous(one):
        text += f", strides {subject.tuple_of(one.strides)}"
    return f"{text}, written in place" if isinstance(one, Given) and one.is_cache else text


def is_contiguous(one: Given | Made) -> bool:
    step = one.shape[0] * 0 + 1 if one.shape else None
    for size, stride in zip(reversed(one.shape), reversed(one.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step = step * size
    return True


def result_type(subject: Subject) -> str:
    match len(subject.outputs):
        case 0:
            return "None"
        case 1:
            return "torch.Tensor"
        case count:
            return f"tuple[{', '.join(['torch.Tensor'] * count)}]"


def _docstring(subject: Subject) -> Iterator[str]:
    yield f'    """{subject.kernel.name} in one launch.'
    yield ""
    results = [f"{made.name} {described(made, subject)}" for made in subject.outputs]
    if results:
        yield "    Returns:"
        yield from (f"        {text}" for text in results)
    if subject.caches:
        names = ", ".join(given.name for given in subject.caches)
        yield from _writes(subject, names)
    yield '    """'


def _writes(subject: Subject, names: str) -> Iterator[str]:
    """What becomes of the caches."""
    yield f"    Rows of {names} are written in place; all else there stays as it is."
    below = {part.word.negative for part in subject.one.caches}
    if below == {"nowhere"}:
        yield "    A row whose place is below zero is written nowhere."
    elif below == {"end"}:
        yield "    A place below zero is counted from the end; one beyond the end is not written."


def sizes(subject: Subject, body: str) -> list[str]:
    """The statements that read the sizes that ``body`` mentions off the arguments."""
    read = [size for size in subject.sizes if size.read is not None]
    return [f"    {size.name} = {size.read}" for size in read if re.search(rf"\b{size.name}\b", body)]


def _checks(subject: Subject) -> Iterator[str]:
    for size in subject.sizes:
        if size.least > 1:
            yield f"    if {size.name} < {size.least}:"
            place = f" ({size.read})" if size.read else ""
            message = f"{size.name}{place} has to be {size.least} or more, not {{{size.name}}}"
            yield f'        raise ValueError(f"{message}")'
    for given in subject.inputs:
        shape, strides = subject.tuple_of(given.shape), subject.tuple_of(given.strides)
        yield from statement(f'_check("{given.name}", {given.name}, {shape}, {strides}, {given.dtype})', 4)
    if len(subject.inputs) > 1:
        devices = ", ".join(f"{given.name}.device" for given in subject.inputs)
        yield from statement(f"devices = {{{devices}}}", 4)
        yield "    if len(devices) > 1:"
        yield '        raise ValueError(f"all tensors have to be on one device, not on {devices}")'


def _allocation(made: Made, subject: Subject) -> list[str]:
    options = f"dtype={made.dtype}, device={subject.device}"
    shape = subject.tuple_of(made.shape)
    if is_contiguous(made):
        return statement(f"{made.name} = torch.empty({shape}, {options})", 4)
    strides = subject.tuple_of(made.strides)
    if made.extent is not None:  # the gap behind the last element too
        memory = f"torch.empty(({made.extent},), {options})"
        return statement(f"{made.name} = {memory}.as_strided({shape}, {strides})", 4)
    return statement(f"{made.name} = torch.empty_strided({shape}, {strides}, {options})", 4)


def _launch(subject: Subject) -> Iterator[str]:
    every: list[Given | Made] = [*subject.inputs, *subject.outputs]
    names = {one.argument: one.name for one in every}
    arguments = [names[tensor] for tensor in subject.kernel.tensors]
    arguments += [subject.renamed(symbol) for symbol in subject.kernel.symbols]
    launch = subject.kernel.launch
    arguments += [f"num_warps={launch.num_warps}", f"num_stages={launch.num_stages}"]
    grid, call = subject.spelled(subject.kernel.grid), f"{kernel_name(subject)}[(grid,)]("
    yield f"    grid = {grid}"
    if subject.kernel.grid.is_Integer:
        yield from listed(call, arguments, ")", 4)
    else:
        yield "    if grid > 0:"
        yield from listed(call, arguments, ")", 8)


def returned(subject: Subject) -> list[str]:
    names = [made.name for made in subject.outputs]
    return statement(f"return {', '.join(names)}", 4) if names else []
