"""From a weld program to the text of its kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import sympy
import torch

from kernelweld.codegen.file import file_text
from kernelweld.codegen.launch import Launch, choose
from kernelweld.codegen.names import identifier
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.rows import operand_widths
from kernelweld.codegen.spelling import triton_dtype
from kernelweld.codegen.task import Elementwise, Value, WeldProgram
from kernelweld.codegen.writer import KernelWriter
from kernelweld.errors import CodegenFailed


@dataclass(frozen=True)
class Kernel:
    """A generated kernel.

    ``source`` is the whole text of its file. The kernel function is called ``name`` and takes the
    ``tensors`` and then the integer ``symbols``, in order. ``outputs`` are the tensors it writes,
    ``grid`` the number of programs in x; 0 means nothing to launch.
    """

    name: str
    source: str
    tensors: tuple[str, ...]
    symbols: tuple[str, ...]
    outputs: tuple[str, ...]
    grid: sympy.Expr
    launch: Launch
    dtypes: tuple[torch.dtype, ...]


def emit(program: WeldProgram, launch: Launch | None = None) -> Kernel:
    """The kernel of ``program``, launched as ``launch`` says or as ``choose`` does.

    Raises ``CodegenFailed`` when a step has no spelling in Triton, a row is wider than ``MAX_WIDTH``, or
    the program contradicts itself. Equal programs (the layers of a model) are generated once a process.
    """
    return _emit(program, launch, _numbers(program))


def _numbers(program: WeldProgram) -> tuple[str, ...]:
    """The scalars of a program as text: 0.0 and -0.0, or 1 and 1.0, are equal but give different kernels."""
    steps = (step for task in program.tasks for step in task.steps if isinstance(step, Elementwise))
    return tuple(repr(v) for step in steps for v in step.ins if not isinstance(v, Value))


@lru_cache(maxsize=1024)
def _emit(program: WeldProgram, launch: Launch | None, numbers: tuple[str, ...]) -> Kernel:
    try:
        _check_arguments(program)
        chosen = launch if launch is not None else choose(program)
        if len(chosen.rows) != len(program.tasks):
            raise Refused(
                f"the launch has rows for {len(chosen.rows)} tasks, the weld has {len(program.tasks)}"
            )
        writer = KernelWriter(program, chosen)
        body = writer.body()
    except Refused as refusal:
        source = next((line for task in program.tasks for line in task.sources), "")
        raise CodegenFailed(program.name, str(refusal), source=source) from refusal
    name = identifier(program.name)
    tensors = tuple(tensor for tensor, _ in program.tensors)
    dtypes = tuple(dtype for _, dtype in program.tensors)
    symbols = tuple(s for s in writer.symbols if re.search(rf"\b{s}\b", body))
    text = file_text(program, chosen, (*tensors, *symbols), body, writer.grid)
    return Kernel(name, text, tensors, symbols, program.outputs, writer.grid, chosen, dtypes)


def _check_arguments(program: WeldProgram) -> None:
    names = [name for name, _ in program.tensors]
    bad = [name for name in names if identifier(name) != name]
    if bad or len(set(names)) != len(names):
        raise Refused(f"tensor names must be distinct identifiers, not {names}")
    for _, dtype in program.tensors:
        triton_dtype(dtype)  # refuses what Triton has no name for
    used = {operand.name for task in program.tasks for operand, _ in operand_widths(task)}
    if not used <= set(names):
        raise Refused(f"operands {sorted(used - set(names))} are not among the kernel's tensors")
