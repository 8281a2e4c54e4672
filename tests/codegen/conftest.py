"""Runs row tasks on real tensors in the interpreter and holds the results to the numerics contract."""

from __future__ import annotations

import os

# Read when triton is first imported; tests that need a real compiler use a second process.
os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from hypothesis import settings
from torch.overrides import TorchFunctionMode

from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.run import launch_direct
from kernelweld.codegen.task import Apply, Load, Operand, RowTask, Store, TaskStep, Value, WeldProgram
from kernelweld.ir.word import Word

settings.register_profile("codegen", max_examples=6, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=300, deadline=None)

Steps = Callable[[Mapping[str, Value]], Sequence[TaskStep]]

_GUARD = 64
_SENTINEL = 77.0
_DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}
_SMALLEST = {torch.bfloat16: -133, torch.float16: -24, torch.float32: -149}


class Float64(TorchFunctionMode):
    """Turns every cast to a narrower float into a cast to float64: a reference run under it is the
    exact one.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        if func is torch.Tensor.to and isinstance(args[1], torch.dtype) and args[1].is_floating_point:
            return args[0].double()
        return func(*args, **(kwargs or {}))


def ulp(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring numbers of ``dtype`` at ``exact``."""
    exponent = torch.frexp(exact.double().abs()).exponent - _DIGITS[dtype]
    return torch.ldexp(torch.ones_like(exact.double()), exponent.clamp_min(_SMALLEST[dtype]))


class Lab:
    """Builds one-task programs around tensors and runs them."""

    def operand(
        self, name: str, tensor: torch.Tensor, rows: Sequence[int], heads: int = 1
    ) -> tuple[Value, Operand]:
        """``tensor`` broadcast to ``rows`` (and heads), as a value of its last dimension's width."""
        leading = (*rows, heads) if heads > 1 else tuple(rows)
        strides = [sympy.Integer(s) for s in tensor.expand(*leading, tensor.shape[-1]).stride()]
        head = strides[-2] if heads > 1 else sympy.Integer(0)
        operand = Operand(name, tensor.dtype, tuple(strides[: len(rows)]), strides[-1], head)
        return Value(name, tensor.shape[-1], tensor.dtype), operand

    def task(
        self,
        steps: Steps,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        rows: Sequence[int],
        heads: int = 1,
        title: str = "test",
    ) -> RowTask:
        """Loads of all inputs, the steps, and stores of the outputs (values of the same names)."""
        values: dict[str, Value] = {}
        loads: list[TaskStep] = []
        stores: list[TaskStep] = []
        for name, tensor in inputs.items():
            values[name], operand = self.operand(name, tensor, rows, heads)
            loads.append(Load(values[name], operand))
        for name, tensor in outputs.items():
            values[name], operand = self.operand(name, tensor, rows, heads)
            stores.append(Store(values[name], operand))
        sizes = tuple(sympy.Integer(r) for r in rows)
        return RowTask(title, sizes, (*loads, *steps(values), *stores), heads)

    def program(
        self, tensors: Mapping[str, torch.Tensor], outputs: Sequence[str], *tasks: RowTask
    ) -> WeldProgram:
        return WeldProgram(
            "test_kernel", tasks, tuple((n, t.dtype) for n, t in tensors.items()), tuple(outputs)
        )

    def run(
        self,
        steps: Steps,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        rows: Sequence[int],
        heads: int = 1,
        launch: Launch | None = None,
    ) -> Kernel:
        """Emits and runs one task; the outputs are written in place."""
        tensors = {**inputs, **outputs}
        kernel = emit(
            self.program(tensors, tuple(outputs), self.task(steps, inputs, outputs, rows, heads)), launch
        )
        launch_direct(kernel, tensors, {})
        return kernel

    def word(
        self,
        word: Word,
        operands: Sequence[torch.Tensor | None],
        shapes: Sequence[Sequence[int]],
        heads: int = 1,
        over_heads: bool = False,
        launch: Launch | None = None,
    ) -> list[torch.Tensor]:
        """``word`` on ``operands``; one output of each of ``shapes`` in the word's dtype, with nothing
        written around it.
        """
        dtype = word.static()["dtype"]
        assert isinstance(dtype, torch.dtype)
        inputs = {f"in{i}": t for i, t in enumerate(operands) if t is not None}
        buffers = [guarded(shape, dtype) for shape in shapes]
        outputs = {f"out{i}": view for i, (_, view) in enumerate(buffers)}
        rows = tuple(shapes[0][: -2 if heads > 1 else -1])

        def steps(values: Mapping[str, Value]) -> Sequence[TaskStep]:
            ins = tuple(values[f"in{i}"] if t is not None else None for i, t in enumerate(operands))
            return (Apply(tuple(values[o] for o in outputs), word, ins, over_heads),)

        self.run(steps, inputs, outputs, rows, heads, launch)
        for buffer, view in buffers:
            assert_untouched(buffer, view)
        return list(outputs.values())

    def hold(
        self,
        actual: torch.Tensor,
        reference: Callable[[], torch.Tensor],
        equal: float = 0.98,
        slack: float = 1.0,
    ) -> None:
        """Asserts the numerics contract.

        Against float64, the error of a row (its largest, in ulps of the row's largest element) is at most
        the reference's own plus ``slack``; in half precision at least a share of ``equal`` of all
        elements has the same bits.
        """
        own = reference()
        with Float64():
            exact = reference()
        assert actual.shape == own.shape
        if actual.numel() == 0:
            return
        unit = ulp(exact.abs().amax(-1, keepdim=True), actual.dtype)
        mine, theirs = (((t.double() - exact).abs() / unit).amax(-1) for t in (actual, own))
        worst = (mine - theirs).max()
        assert worst <= slack, f"a row is {worst:.2f} ulp further from float64 than the reference is"
        if actual.dtype != torch.float32:
            differing = int((actual != own).sum())
            assert differing <= max(2, (1 - equal) * own.numel()), (
                f"{differing} of {own.numel()} elements differ"
            )


def guarded(shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A buffer of sentinels and a contiguous view of ``shape`` in its middle."""
    buffer = torch.full((prod(shape) + 2 * _GUARD,), _SENTINEL).to(dtype)
    return buffer, buffer[_GUARD : _GUARD + prod(shape)].view(tuple(shape))


def assert_untouched(buffer: torch.Tensor, view: torch.Tensor) -> None:
    """Nothing around ``view`` was written."""
    assert (buffer[:_GUARD] == _SENTINEL).all()
    assert (buffer[_GUARD + view.numel() :] == _SENTINEL).all()


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of this session's own."""
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWELD_CACHE_DIR", str(folder))
        yield folder
