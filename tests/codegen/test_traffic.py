"""The bytes a weld has to move: counted by hand for programs of real models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from kernelweld.codegen.task import (
    Apply,
    Elementwise,
    Index,
    Load,
    Operand,
    RowTask,
    Store,
    Value,
    WeldProgram,
)
from kernelweld.codegen.traffic import moved_bytes
from kernelweld.ir import RMSNorm

TOKENS = sympy.Symbol("tokens", integer=True, positive=True)
bf16, f32, i64 = torch.bfloat16, torch.float32, torch.int64


@pytest.mark.parametrize(
    ("name", "by_row", "once"),
    [
        ("add_rms_norm", 4 * 7168 * 2, 7168 * 2),
        ("head_norm_rope", (2 * 64 * 128 + 2 * 128) * 2, 128 * 2),
        ("decode_pack", 2 * (1536 + 512 + 64) * 2 + 2 * 32 * 4, (1536 + 512) * 2),
        ("layer_norm", 2 * 5120 * 2, 2 * 5120 * 2),
        ("swiglu", 3 * 2048 * 2, 0),
    ],
)
def test_programs_of_models(name: str, by_row: int, once: int, programs: Any) -> None:
    assert sympy.expand(moved_bytes(programs(name)) - by_row * TOKENS - once) == 0


def operand(name: str, dtype: torch.dtype, *strides: int, **more: Any) -> Operand:
    return Operand(name, dtype, tuple(map(sympy.Integer, strides)), sympy.Integer(1), **more)


def test_two_tasks_that_read_one_value_count_it_once(programs: Any) -> None:
    """A pack of two equal chains reads its input once and writes two outputs."""
    program = programs("swiglu")
    (task,) = program.tasks
    *rest, store = task.steps
    assert isinstance(store, Store)
    twin = replace(task, steps=(*rest, replace(store, operand=replace(store.operand, name="other_out"))))
    assert moved_bytes(replace(program, tasks=(task, twin))) == 4 * 2048 * 2 * TOKENS


def test_rows_at_another_offset_are_other_memory(programs: Any) -> None:
    program = programs("swiglu")
    (task,) = program.tasks
    moved = tuple(
        replace(step, operand=replace(step.operand, offset=step.operand.offset + 1))
        if isinstance(step, (Load, Store))
        else step
        for step in task.steps
    )
    assert moved_bytes(replace(program, tasks=(task, replace(task, steps=moved)))) == 6 * 2048 * 2 * TOKENS


def test_a_gathered_row_counts_for_each_index_and_not_for_each_head() -> None:
    """Two tables of 64, gathered by token for 8 heads of 128: the heads share what was gathered."""
    index = Load(Value("index", 1, i64), replace(operand("index_in", i64, 1, 0), feature_stride=sympy.S.Zero))
    shifted = Elementwise(Value("shifted", 1, i64), "add", (index.out, 1))
    at = Index(shifted.out, (sympy.Integer(64),))
    table = Load(Value("table", 64, f32), operand("table_in", f32, 0, 0, indices=(at,)))
    x = Load(Value("x", 128, bf16), operand("x_in", bf16, 1024, 128))
    task = RowTask("gather", (TOKENS, sympy.Integer(8)), (index, shifted, table, x))
    program = WeldProgram("gather", (task,), (), ())
    assert sympy.expand(moved_bytes(program)) == TOKENS * (8 + 64 * 4 + 8 * 128 * 2)


def test_heads_in_the_tile_count() -> None:
    """MiniMax's norm over 48 heads of 128, weights by head."""
    x = Load(Value("x", 128, bf16), operand("x_in", bf16, 6144, head_stride=sympy.Integer(128)))
    w = Load(Value("w", 128, bf16), operand("w_in", bf16, 0, head_stride=sympy.Integer(128)))
    y = Value("y", 128, bf16)
    apply = Apply((y,), RMSNorm(1e-6, normed_dtype=bf16, dtype=bf16), (x.out, w.out, None), over_heads=True)
    store = Store(y, operand("y_out", bf16, 6144, head_stride=sympy.Integer(128)))
    program = WeldProgram("norm", (RowTask("norm", (TOKENS,), (x, w, apply, store), 48),), (), ())
    assert sympy.expand(moved_bytes(program)) == 2 * 6144 * 2 * TOKENS + 6144 * 2
