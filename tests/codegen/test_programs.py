"""Whole programs: packs of unequal tasks, fan-out, norms over heads, renamings, symbolic sizes,
gathered rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import sympy
import torch

from kernelweld.codegen.emit import emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.run import launch_direct, programs
from kernelweld.codegen.task import (
    Apply,
    Concat,
    Elementwise,
    Index,
    Load,
    Operand,
    RowTask,
    Slice,
    Store,
    TaskStep,
    Value,
    WeldProgram,
)
from kernelweld.errors import CodegenFailed
from kernelweld.ir import GateMul, L2Norm, LayerNorm, ResidualAdd, RMSNorm, Rope, RopeTable

bf16, f32 = torch.bfloat16, torch.float32
ROUND_THEN_SCALE = RMSNorm(1e-6, normed_dtype=bf16, dtype=bf16)
ROTATE = Rope(rotary_dim=64, product_dtype=bf16, dtype=bf16)

Values = Mapping[str, Value]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random(*shape: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def add_norm(values: Values) -> Sequence[TaskStep]:
    x, residual, weight = (values[k] for k in ("x", "residual", "weight"))
    return (
        Apply((values["kept"],), ResidualAdd(dtype=bf16), (x, residual)),
        Apply((values["normed"],), ROUND_THEN_SCALE, (values["kept"], weight, None)),
    )


def test_a_value_with_other_users_is_stored_too(lab: Any) -> None:
    inputs = {"x": random(5, 320), "residual": random(5, 320), "weight": random(320)}
    outputs = {"kept": torch.empty(5, 320, dtype=bf16), "normed": torch.empty(5, 320, dtype=bf16)}
    kernel = lab.run(add_norm, inputs, outputs, (5,))
    kept = inputs["x"] + inputs["residual"]
    assert torch.equal(outputs["kept"], kept)
    assert torch.equal(outputs["normed"], ROUND_THEN_SCALE.reference(kept, inputs["weight"], None))
    assert kernel.outputs == ("kept", "normed")


@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_a_pack_of_unequal_tasks(lab: Any, tokens: int) -> None:
    """A 1536-wide norm, a 512-wide norm read from the middle of a row, a per-head rope and a gate in
    one launch.
    """
    down = random(tokens, 1536 + 576)
    tensors = {
        "q_in": down[:, :1536],
        "q_weight": random(1536),
        "kv_in": down[:, 1536:2048],
        "kv_weight": random(512),
        "k_pe": down[:, 2048:].unsqueeze(1),
        "cos": random(tokens, 1, 64),
        "sin": random(tokens, 1, 64),
        "gate_in": random(tokens, 2, 96),
        "up_in": random(tokens, 2, 96),
    }
    outputs = {
        "q": torch.empty(tokens, 1536, dtype=bf16),
        "kv": torch.empty(tokens, 512, dtype=bf16),
        "k": torch.empty(tokens, 1, 64, dtype=bf16),
        "act": torch.empty(tokens, 2, 96, dtype=bf16),
    }
    gate = GateMul(act_dtype=bf16, dtype=bf16)

    def pick(*names: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return (
            {n: tensors[n] for n in names if n in tensors},
            {n: outputs[n] for n in names if n in outputs},
        )

    def norm(x: str, weight: str, y: str) -> RowTask:
        return lab.task(
            lambda v: (Apply((v[y],), ROUND_THEN_SCALE, (v[x], v[weight], None)),),
            *pick(x, weight, y),
            (tokens,),
        )

    tasks = (
        norm("q_in", "q_weight", "q"),
        norm("kv_in", "kv_weight", "kv"),
        lab.task(
            lambda v: (Apply((v["k"],), ROTATE, (v["k_pe"], v["cos"], v["sin"])),),
            *pick("k_pe", "cos", "sin", "k"),
            (tokens, 1),
        ),
        lab.task(
            lambda v: (Apply((v["act"],), gate, (v["gate_in"], v["up_in"])),),
            *pick("gate_in", "up_in", "act"),
            (tokens, 2),
        ),
    )
    kernel = emit(lab.program(tensors | outputs, tuple(outputs), *tasks))
    launch_direct(kernel, tensors | outputs, {})
    assert torch.equal(outputs["q"], ROUND_THEN_SCALE.reference(tensors["q_in"], tensors["q_weight"], None))
    assert torch.equal(
        outputs["kv"], ROUND_THEN_SCALE.reference(tensors["kv_in"], tensors["kv_weight"], None)
    )
    assert torch.equal(outputs["k"], ROTATE.reference(tensors["k_pe"], tensors["cos"], tensors["sin"]))
    expected = gate.reference(tensors["gate_in"], tensors["up_in"])
    torch.testing.assert_close(outputs["act"], expected, rtol=2**-8, atol=0)


def test_a_task_without_rows_is_left_out_of_a_pack(lab: Any) -> None:
    tensors = {
        "x": random(0, 32),
        "y": random(0, 32),
        "a": random(3, 32),
        "b": torch.empty(3, 32, dtype=bf16),
    }

    def relu(source: str, target: str, rows: int) -> RowTask:
        return lab.task(
            lambda v: (Elementwise(v[target], "relu", (v[source],)),),
            {source: tensors[source]},
            {target: tensors[target]},
            (rows,),
        )

    kernel = emit(lab.program(tensors, ("y", "b"), relu("x", "y", 0), relu("a", "b", 3)))
    launch_direct(kernel, tensors, {})
    assert torch.equal(tensors["b"], tensors["a"].relu())
    assert "if pid" not in kernel.source


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_a_norm_over_all_heads_then_rope_in_each(lab: Any, heads: int) -> None:
    """MiniMax-M2: q is normalised over its flattened heads, then every head is rotated."""
    inputs = {
        "x": random(4, heads, 96),
        "weight": random(heads, 96),
        "cos": random(4, 1, 64),
        "sin": random(4, 1, 64),
    }
    outputs = {"y": torch.empty(4, heads, 96, dtype=bf16)}
    normed = Value("normed", 96, bf16)

    def steps(v: Values) -> Sequence[TaskStep]:
        return (
            Apply((normed,), ROUND_THEN_SCALE, (v["x"], v["weight"], None), over_heads=True),
            Apply((v["y"],), ROTATE, (normed, v["cos"], v["sin"])),
        )

    rows = (4,) if heads > 1 else (4, 1)
    lab.run(steps, inputs, outputs, rows, heads)
    flat = ROUND_THEN_SCALE.reference(inputs["x"].flatten(1), inputs["weight"].flatten(), None)
    expected = ROTATE.reference(flat.view(4, heads, 96), inputs["cos"], inputs["sin"])
    assert torch.equal(outputs["y"], expected)


@pytest.mark.parametrize("heads", [2, 5])
@pytest.mark.parametrize("over_heads", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_norms_with_heads_in_the_tile(lab: Any, heads: int, over_heads: bool, shared: bool) -> None:
    x = random(3, heads, 40, dtype=f32) + 1
    weight = random(40, dtype=f32) if shared else random(heads, 40, dtype=f32)
    cases = {
        RMSNorm(1e-6): [x, weight, None],
        LayerNorm(1e-6): [x, weight, weight],
        L2Norm(1e-6): [x],
    }
    for word, operands in cases.items():
        (actual,) = lab.word(word, operands, [(3, heads, 40)], heads, over_heads)
        if over_heads:
            flat = [t if t is None else t.expand(*t.shape[:-2], heads, 40).flatten(-2) for t in operands]
            expected = word.reference(*flat).view(3, heads, 40)
        else:
            expected = word.reference(*operands)
        torch.testing.assert_close(actual, expected, rtol=2e-6, atol=2e-6)


def test_slices_and_concatenations_of_a_row(lab: Any) -> None:
    """The halves of a row trade places around a negation: rotate_half written by hand."""
    inputs, outputs = {"x": random(5, 36)}, {"y": torch.empty(5, 36, dtype=bf16)}
    low, high, minus = (Value(name, 18, bf16) for name in ("low", "high", "minus"))

    def steps(v: Values) -> Sequence[TaskStep]:
        return (
            Slice(low, v["x"], 0, 18),
            Slice(high, v["x"], 18, 36),
            Elementwise(minus, "neg", (high,)),
            Concat(v["y"], (minus, low)),
        )

    lab.run(steps, inputs, outputs, (5,))
    x = inputs["x"]
    assert torch.equal(outputs["y"], torch.cat([-x[:, 18:], x[:, :18]], -1))


def test_uneven_cuts_of_one_value_still_reduce_right(lab: Any) -> None:
    inputs, outputs = {"x": random(3, 50, dtype=f32)}, {"y": torch.empty(3, 50)}
    odd, even, mixed = Value("odd", 25, f32), Value("even", 25, f32), Value("mixed", 50, f32)

    def steps(v: Values) -> Sequence[TaskStep]:
        return (
            Slice(even, v["x"], 0, 50, 2),
            Slice(odd, v["x"], 1, 50, 2),
            Concat(mixed, (odd, even)),
            Apply((v["y"],), RMSNorm(1e-6, scale="none"), (mixed, None, None)),
        )

    lab.run(steps, inputs, outputs, (3,))
    x = inputs["x"]
    expected = RMSNorm(1e-6).reference(torch.cat([x[:, 1::2], x[:, ::2]], -1), None, None)
    torch.testing.assert_close(outputs["y"], expected, rtol=1e-6, atol=0)


def symbolic_rope() -> WeldProgram:
    """q of ``[tokens, 3, 96]`` with row stride ``pitch``, rotated; both sizes are symbols."""
    tokens, pitch = (sympy.Symbol(n, integer=True, positive=True) for n in ("tokens", "pitch"))
    one, zero = sympy.Integer(1), sympy.Integer(0)
    q, cos, sin, y = (Value(n, w, bf16) for n, w in (("q", 96), ("cos", 64), ("sin", 64), ("y", 96)))
    narrow = (sympy.Integer(64), zero)
    steps = (
        Load(q, Operand("q_in", bf16, (pitch, sympy.Integer(96)), one)),
        Load(cos, Operand("cos_in", bf16, narrow, one)),
        Load(sin, Operand("sin_in", bf16, narrow, one)),
        Apply((y,), ROTATE, (q, cos, sin)),
        Store(y, Operand("y_out", bf16, (sympy.Integer(288), sympy.Integer(96)), one)),
    )
    names = ("q_in", "cos_in", "sin_in", "y_out")
    task = RowTask("rope", (tokens, sympy.Integer(3)), steps)
    return WeldProgram("symbolic_rope", (task,), tuple((n, bf16) for n in names), ("y_out",))


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_one_kernel_serves_every_size(tokens: int) -> None:
    kernel = emit(symbolic_rope())
    assert kernel.symbols == ("pitch", "tokens")
    wide = random(tokens, 400)
    q = wide[:, :288].view(tokens, 3, 96) if tokens else wide[:, :288].reshape(0, 3, 96)
    cos, sin, y = random(tokens, 64), random(tokens, 64), torch.empty(tokens, 3, 96, dtype=bf16)
    sizes = {"tokens": tokens, "pitch": 400}
    launch_direct(kernel, {"q_in": q, "cos_in": cos, "sin_in": sin, "y_out": y}, sizes)
    assert torch.equal(y, ROTATE.reference(q, cos[:, None], sin[:, None]))
    rows = kernel.launch.rows[0]
    assert programs(kernel, sizes) == -(-3 * tokens // rows)


def test_symbols_of_the_grid_alone_are_no_arguments() -> None:
    kernel = emit(symbolic_rope(), Launch(num_warps=1, num_stages=1, rows=(1,)))
    assert kernel.symbols == ("pitch",)
    assert {s.name for s in kernel.grid.free_symbols} == {"tokens"}


def test_cosines_gathered_from_a_cache(lab: Any) -> None:
    """vLLM's table: one row [cos | sin] for each position, gathered, then used by rope."""
    table, positions, x = random(50, 64), torch.randint(0, 50, (6,)), random(6, 80)
    outputs = {"y": torch.empty(6, 80, dtype=bf16)}
    row, cos, sin = Value("row", 64, bf16), Value("cos", 32, bf16), Value("sin", 32, bf16)
    word = Rope(rotary_dim=64, table="half", dtype=bf16)

    def steps(v: Values) -> Sequence[TaskStep]:
        gathered = Operand(
            "cache",
            bf16,
            (sympy.Integer(0),),
            sympy.Integer(1),
            indices=(Index(v["positions"], (sympy.Integer(64),)),),
        )
        return (
            Load(row, gathered),
            Apply((cos, sin), RopeTable(source="cache", layout="half", dtype=bf16), (v["positions"], row)),
            Apply((v["y"],), word, (v["x"], cos, sin)),
        )

    inputs = {"x": x, "positions": positions.unsqueeze(-1)}
    task = lab.task(steps, inputs, outputs, (6,))
    tensors = {"cache": table, **inputs, **outputs}
    launch_direct(emit(lab.program(tensors, ("y",), task)), tensors, {})
    expected = word.reference(
        x, *RopeTable(source="cache", layout="half", dtype=bf16).reference(positions, table)
    )
    torch.testing.assert_close(outputs["y"], expected, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_rows_per_program_do_not_change_bits(lab: Any, rows: int) -> None:
    inputs = {"x": random(11, 200), "residual": random(11, 200), "weight": random(200)}
    results = []
    for block in (rows, 4):
        outputs = {"kept": torch.empty(11, 200, dtype=bf16), "normed": torch.empty(11, 200, dtype=bf16)}
        lab.run(add_norm, inputs, outputs, (11,), launch=Launch(4, 1, (block,)))
        results.append(outputs["normed"])
    assert torch.equal(*results)


def test_launch_depends_on_width_alone(lab: Any) -> None:
    def launch(tokens: int) -> Launch:
        tensors = {"x": random(tokens, 128), "y": random(tokens, 128)}
        task = lab.task(
            lambda v: (Elementwise(v["y"], "relu", (v["x"],)),),
            {"x": tensors["x"]},
            {"y": tensors["y"]},
            (tokens,),
        )
        return emit(lab.program(tensors, ("y",), task)).launch

    assert launch(2) == launch(4096) == Launch(num_warps=4, num_stages=1, rows=(8,))


def test_offsets_past_32_bits_are_computed_in_64() -> None:
    def source(rows: int) -> str:
        x, stride = Value("x", 128, bf16), (sympy.Integer(4096),)
        operands = (
            Operand("a", bf16, stride, sympy.Integer(1)),
            Operand("b", bf16, stride, sympy.Integer(1)),
        )
        task = RowTask("copy", (sympy.Integer(rows),), (Load(x, operands[0]), Store(x, operands[1])))
        return emit(WeldProgram("copy", (task,), (("a", bf16), ("b", bf16)), ("b",))).source

    assert "int64" not in source(2**19 - 1)
    assert ".to(tl.int64)" in source(2**19 + 1)


def test_row_dimensions_merge_only_when_contiguous_for_all(lab: Any) -> None:
    def source(x: torch.Tensor) -> str:
        tensors = {"x": x, "y": torch.empty(4, 3, 2, 32, dtype=bf16)}
        task = lab.task(
            lambda v: (Elementwise(v["y"], "relu", (v["x"],)),), {"x": x}, {"y": tensors["y"]}, (4, 3, 2)
        )
        kernel = emit(lab.program(tensors, ("y",), task))
        launch_direct(kernel, tensors, {})
        assert torch.equal(tensors["y"], x.relu())
        return kernel.source

    assert "%" not in source(random(4, 3, 2, 32))
    assert "% 6" in source(random(4, 7, 2, 32)[:, :3])
    assert "% 3" in source(random(4, 2, 3, 32).transpose(1, 2))


def failing(lab: Any, steps: Sequence[TaskStep], heads: int = 1, **fields: Any) -> WeldProgram:
    task = RowTask("bad", (sympy.Integer(2),), tuple(steps), heads, sources=("model.py:7",))
    return WeldProgram(**{"name": "bad", "tasks": (task,), "tensors": (("x", f32),), "outputs": (), **fields})


def test_a_program_that_cannot_be_generated_says_why_and_where(lab: Any) -> None:
    x, y = Value("x", 8, f32), Value("y", 8, f32)
    operand = Operand("x", f32, (sympy.Integer(8),), sympy.Integer(1))
    cases = {
        "elementwise operation `erf`": failing(lab, (Load(x, operand), Elementwise(y, "erf", (x,)))),
        "value `x` is used before": failing(lab, (Store(x, operand), Load(x, operand))),
        "operands ['x'] are not among": failing(lab, (Load(x, operand),), tensors=(("z", f32),)),
        "64 heads of 2000 elements": failing(lab, (Load(Value("w", 2000, f32), operand),), heads=64),
        "dtype bool is not generated": failing(lab, (Load(x, operand),), tensors=(("x", torch.bool),)),
        "distinct identifiers": failing(lab, (Load(x, operand),), tensors=(("x", f32), ("2x", f32))),
    }
    for reason, program in cases.items():
        with pytest.raises(CodegenFailed) as caught:
            emit(program)
        assert reason in str(caught.value)
        assert "at model.py:7" in str(caught.value)


def test_a_launch_for_other_tasks_is_refused() -> None:
    with pytest.raises(CodegenFailed, match="rows for 2 tasks, the weld has 1"):
        emit(symbolic_rope(), Launch(4, 1, (1, 1)))


def test_an_output_that_all_rows_share_is_refused() -> None:
    x = Value("x", 8, f32)
    load = Load(x, Operand("x", f32, (sympy.Integer(8),), sympy.Integer(1)))
    store = Store(x, Operand("y", f32, (sympy.Integer(0),), sympy.Integer(1)))
    task = RowTask("race", (sympy.Integer(2),), (load, store))
    with pytest.raises(CodegenFailed, match="output `y` is the same for all rows"):
        emit(WeldProgram("race", (task,), (("x", f32), ("y", f32)), ("y",)))
