"""Runs row tasks on real tensors in the interpreter and holds the results to the numerics contract."""

from __future__ import annotations

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
from kernelweld.ir import GateMul, LayerNorm, ResidualAdd, RMSNorm, Rope, RopeTable, Word

# HYPOTHESIS_PROFILE=nightly draws many more cases.
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
        buffers = [guarded(shape, dtype, next(iter(inputs.values())).device) for shape in shapes]
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


def guarded(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """A buffer of sentinels and a contiguous view of ``shape`` in its middle."""
    buffer = torch.full((prod(shape) + 2 * _GUARD,), _SENTINEL, device=device).to(dtype)
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


def _catalogue(name: str) -> Kernel:
    """Kernels of real models at real sizes, with a symbolic number of tokens."""
    return emit(getattr(_Catalogue(), name)())


class _Catalogue:
    """Programs by name, built from operands that are written as ``(name, width, row strides, offset)``."""

    tokens = sympy.Symbol("tokens", integer=True, positive=True)
    bf16 = torch.bfloat16

    def load(
        self,
        name: str,
        width: int,
        *strides: int,
        offset: int = 0,
        head: int = 0,
        dtype: torch.dtype = bf16,
        at: str = "",
    ) -> Load:
        value = Value(name, width, dtype)
        return Load(value, self._operand(at or f"{name}_in", dtype, strides, offset, head))

    def store(self, value: Value, *strides: int, head: int = 0) -> Store:
        return Store(value, self._operand(f"{value.name}_out", value.dtype, strides, 0, head))

    def _operand(
        self, name: str, dtype: torch.dtype, strides: tuple[int, ...], offset: int, head: int
    ) -> Operand:
        sizes = tuple(map(sympy.Integer, strides))
        return Operand(name, dtype, sizes, sympy.Integer(1), sympy.Integer(head), sympy.Integer(offset))

    def program(self, name: str, *tasks: RowTask) -> WeldProgram:
        memory = [s.operand for t in tasks for s in t.steps if isinstance(s, (Load, Store))]
        written = [s.operand.name for t in tasks for s in t.steps if isinstance(s, Store)]
        return WeldProgram(name, tasks, tuple({o.name: o.dtype for o in memory}.items()), tuple(written))

    def add_rms_norm(self) -> WeldProgram:
        """DeepSeek-V3.2: residual sum and norm of a 7168-wide row."""
        x, r, w = self.load("x", 7168, 7168), self.load("residual", 7168, 7168), self.load("weight", 7168, 0)
        kept, y = Value("kept", 7168, self.bf16), Value("y", 7168, self.bf16)
        norm = RMSNorm(1e-6, normed_dtype=self.bf16, dtype=self.bf16)
        steps = (
            *(x, r, w),
            Apply((kept,), ResidualAdd(dtype=self.bf16), (x.out, r.out)),
            self.store(kept, 7168),
            Apply((y,), norm, (kept, w.out, None)),
            self.store(y, 7168),
        )
        source = "modeling_deepseek_v32.py:612"
        return self.program(
            "add_rms_norm", RowTask("residual add, then norm", (self.tokens,), steps, sources=(source,))
        )

    def head_norm_rope(self) -> WeldProgram:
        """Qwen3: q of 64 heads, each normalised over its 128 elements and rotated."""
        q, w = self.load("q", 128, 8192, 128), self.load("weight", 128, 0, 0)
        cos, sin = self.load("cos", 128, 128, 0), self.load("sin", 128, 128, 0)
        normed, y = Value("normed", 128, self.bf16), Value("y", 128, self.bf16)
        rope = Rope(rotary_dim=128, product_dtype=self.bf16, dtype=self.bf16)
        steps = (
            *(q, w, cos, sin),
            Apply((normed,), RMSNorm(1e-6, normed_dtype=self.bf16, dtype=self.bf16), (q.out, w.out, None)),
            Apply((y,), rope, (normed, cos.out, sin.out)),
            self.store(y, 8192, 128),
        )
        return self.program(
            "head_norm_rope", RowTask("q norm and rope", (self.tokens, sympy.Integer(64)), steps)
        )

    def decode_pack(self) -> WeldProgram:
        """DeepSeek-V3.2: q and kv norms and the rope of k from one merged projection, in one launch."""
        norm = RMSNorm(1e-6, normed_dtype=self.bf16, dtype=self.bf16)
        rope = Rope(rotary_dim=64, style="interleaved_to_halves", table="half", dtype=self.bf16)

        def normed(name: str, width: int, offset: int) -> RowTask:
            x = self.load(name, width, 2112, offset=offset, at="down_in")
            w, y = self.load(f"{name}_weight", width, 0), Value(f"{name}_normed", width, self.bf16)
            steps = (x, w, Apply((y,), norm, (x.out, w.out, None)), self.store(y, width))
            return RowTask(f"{name} norm", (self.tokens,), steps)

        k = self.load("k_pe", 64, 2112, offset=2048, at="down_in")
        cos, sin = (self.load(n, 32, 32, dtype=torch.float32) for n in ("cos", "sin"))
        y = Value("k_turned", 64, self.bf16)
        turn = (k, cos, sin, Apply((y,), rope, (k.out, cos.out, sin.out)), self.store(y, 64))
        return self.program(
            "decode_pack",
            normed("q", 1536, 0),
            normed("kv", 512, 1536),
            RowTask("k rope", (self.tokens,), turn),
        )

    def layer_norm(self) -> WeldProgram:
        """A wide LayerNorm with weight and bias."""
        x, w, b = self.load("x", 5120, 5120), self.load("weight", 5120, 0), self.load("bias", 5120, 0)
        y = Value("y", 5120, self.bf16)
        word = LayerNorm(1e-5, dtype=self.bf16)
        steps = (x, w, b, Apply((y,), word, (x.out, w.out, b.out)), self.store(y, 5120))
        return self.program("layer_norm", RowTask("layer norm", (self.tokens,), steps))

    def swiglu(self) -> WeldProgram:
        """silu of the first half of a merged projection times the second half."""
        gate, up = (
            self.load(n, 2048, 4096, offset=o, at="merged_in") for n, o in (("gate", 0), ("up", 2048))
        )
        y = Value("y", 2048, self.bf16)
        word = GateMul(act_dtype=self.bf16, dtype=self.bf16)
        steps = (gate, up, Apply((y,), word, (gate.out, up.out)), self.store(y, 2048))
        return self.program("swiglu", RowTask("silu(gate) * up", (self.tokens,), steps))

    def mrope(self) -> WeldProgram:
        """Qwen3.5: cosines and sines from three rows of positions with interleaved sections."""
        positions = Load(
            Value("positions", 3, torch.int64),
            Operand("positions_in", torch.int64, (sympy.Integer(1),), self.tokens),
        )
        frequencies = self.load("inv_freq", 32, 0, dtype=torch.float32)
        cos, sin = Value("cos", 64, self.bf16), Value("sin", 64, self.bf16)
        word = RopeTable(sections=(11, 11, 10), section_order="interleaved", dtype=self.bf16)
        steps = (
            positions,
            frequencies,
            Apply((cos, sin), word, (positions.out, frequencies.out)),
            self.store(cos, 64),
            self.store(sin, 64),
        )
        return self.program("mrope", RowTask("rotary table", (self.tokens,), steps))


@pytest.fixture(scope="session")
def programs() -> Callable[[str], WeldProgram]:
    """The programs of ``catalogue`` before code is generated."""
    return lambda name: getattr(_Catalogue(), name)()


@pytest.fixture(scope="session")
def catalogue() -> Callable[[str], Kernel]:
    """Kernels of real models by name; every call emits anew."""
    return _catalogue
