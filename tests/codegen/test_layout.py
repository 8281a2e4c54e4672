"""Pieces against sets of integers, and the partitions that the layout solver finds."""

from __future__ import annotations

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelweld.codegen.layout import Alignment, Span, cuts, solve
from kernelweld.codegen.piece import Piece, meet, split
from kernelweld.codegen.plan import plan_task
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.task import Apply, Concat, Load, Operand, RowTask, Slice, TaskStep, Value
from kernelweld.ir import Rope

pieces = st.builds(Piece, st.integers(0, 40), st.integers(1, 30), st.integers(1, 9))


def members(piece: Piece) -> set[int]:
    return {piece.start + k * piece.step for k in range(piece.count)}


@given(pieces, pieces)
def test_meet_is_set_intersection(p: Piece, q: Piece) -> None:
    both = meet(p, q)
    assert (set() if both is None else members(both)) == members(p) & members(q)


@given(pieces, pieces)
def test_split_parts_are_disjoint_and_cover(p: Piece, q: Piece) -> None:
    part = meet(p, q)
    if part is None:
        return
    parts = split(p, part)
    assert part in parts
    assert sorted(k for one in parts for k in members(one)) == sorted(members(p))


@given(pieces, st.integers(0, 20), st.integers(1, 5))
def test_preimage_undoes_image(p: Piece, start: int, step: int) -> None:
    assert p.image(start, step).preimage(start, step) == p


def test_equal_positions_share_their_cuts() -> None:
    halves = Alignment(4, (Span("a", 0), Span("a", 4)))
    same = Alignment(8, (Span("a"), Span("b")))
    partitions = solve({"a": 8, "b": 8}, [same, halves])
    assert partitions["a"] == partitions["b"] == (Piece(0, 4), Piece(4, 4))
    assert cuts(partitions, same) == (Piece(0, 4), Piece(4, 4))


def layout(*steps: TaskStep) -> dict[str, tuple[str, ...]]:
    partitions = plan_task(RowTask("t", (sympy.Integer(1),), steps))
    return {name: tuple(map(str, partition)) for name, partition in partitions.items()}


def value(name: str, width: int) -> tuple[Value, Load]:
    zero = sympy.Integer(0)
    made = Value(name, width, torch.float32)
    return made, Load(made, Operand(name, torch.float32, (zero,), sympy.Integer(1)))


def rope_layout(style: str, table: str) -> dict[str, tuple[str, ...]]:
    x, load_x = value("x", 20)
    cos, load_cos = value("cos", 16)
    sin, load_sin = value("sin", 16)
    y = Value("y", 20, torch.float32)
    word = Rope(rotary_dim=16, offset=2, style=style, table=table)
    return layout(load_x, load_cos, load_sin, Apply((y,), word, (x, cos, sin)))


def test_neox_cuts_at_the_rotary_part_and_its_middle() -> None:
    found = rope_layout("neox", "halves")
    assert found["x"] == found["y"] == ("[0:2]", "[2:10]", "[10:18]", "[18:20]")
    assert found["cos"] == found["sin"] == ("[0:8]", "[8:16]")


def test_interleaved_to_halves_reads_every_second_and_writes_halves() -> None:
    found = rope_layout("interleaved_to_halves", "pairs")
    assert found["x"] == ("[0:2]", "[2:17:2]", "[3:18:2]", "[18:20]")
    assert found["y"] == ("[0:2]", "[2:10]", "[10:18]", "[18:20]")
    assert found["cos"] == ("[0:15:2]", "[1:16:2]")


def test_slices_and_concatenations_only_rename() -> None:
    x, load_x = value("x", 12)
    odd, low = Value("odd", 6, torch.float32), Value("low", 3, torch.float32)
    y = Value("y", 9, torch.float32)
    found = layout(load_x, Slice(odd, x, 1, 12, 2), Slice(low, x, 0, 3), Concat(y, (low, odd)))
    assert found["x"] == ("[0:3:2]", "[1]", "[3:12:2]", "[4:11:2]")
    assert found["odd"] == ("[0]", "[1:6]")
    assert found["y"] == ("[0:3:2]", "[1]", "[3]", "[4:9]")


def test_too_many_pieces_are_refused() -> None:
    x, load_x = value("x", 64)
    parts = tuple(Value(f"p{i}", 1, torch.float32) for i in range(64))
    with pytest.raises(Refused, match=r"`x` falls into \d+ register pieces"):
        layout(load_x, *(Slice(p, x, i, i + 1) for i, p in enumerate(parts)))


def test_a_row_wider_than_a_program_is_refused() -> None:
    _, load = value("x", 65537)
    with pytest.raises(Refused, match="`x` has 65537 elements in a row"):
        layout(load)


def test_a_value_defined_twice_is_refused() -> None:
    _, load = value("x", 8)
    with pytest.raises(Refused, match="`x` is defined twice"):
        layout(load, load)
