"""Measured launches: which kernels they are for, which rows, and which files are not used."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
import triton

from kernelweld.codegen.emit import emit
from kernelweld.codegen.launch import Launch, candidates, choose
from kernelweld.codegen.rows import most_rows
from kernelweld.codegen.task import Load, RowTask, Store, WeldProgram
from kernelweld.codegen.tuning import Entry, Tuning, kernel_key, range_of
from kernelweld.codegen.tuning_file import path_of, read_tuning, write_tuning
from kernelweld.errors import KernelweldWarning

Programs = Callable[[str], WeldProgram]
TOKENS = sympy.Symbol("tokens", integer=True, positive=True)
FAST = Launch(16, 1, (1,))


def of_rows(program: WeldProgram, rows: Any) -> WeldProgram:
    """``program`` with ``rows`` in place of its symbolic number of tokens."""

    def sized(task: RowTask) -> RowTask:
        return replace(task, rows=tuple(size.subs(TOKENS, rows) for size in task.rows))

    return replace(program, tasks=tuple(map(sized, program.tasks)))


def table(program: WeldProgram, *found: tuple[int, Launch]) -> Tuning:
    key = kernel_key(program)
    return Tuning("a GPU").including(Entry(key, range_of(rows), launch, 1.0, 2.0) for rows, launch in found)


# --- which kernel, which rows ---


@pytest.mark.parametrize("name", ["add_rms_norm", "head_norm_rope", "decode_pack", "swiglu"])
def test_a_kernel_is_the_same_at_any_number_of_rows(name: str, programs: Programs) -> None:
    program = programs(name)
    keys = {kernel_key(of_rows(program, rows)) for rows in (2, 64, 2048, sympy.Symbol("s27", integer=True))}
    assert keys == {kernel_key(program)}


def test_a_kernel_is_the_same_wherever_the_model_asks_for_it(programs: Programs) -> None:
    program = programs("add_rms_norm")
    (task,) = program.tasks
    moved = replace(program, tasks=(replace(task, sources=("other_model.py:7",)),))
    assert moved != program
    assert kernel_key(moved) == kernel_key(program)


def test_other_work_is_another_kernel(programs: Programs) -> None:
    program = programs("swiglu")
    (task,) = program.tasks

    def of_dtype(dtype: torch.dtype) -> WeldProgram:
        steps = tuple(
            replace(step, operand=replace(step.operand, dtype=dtype)) if isinstance(step, Load) else step
            for step in task.steps
        )
        tensors = tuple((name, dtype if "in" in name else kept) for name, kept in program.tensors)
        return replace(program, tasks=(replace(task, steps=steps),), tensors=tensors)

    def strided(step: Any) -> Any:
        strides = (sympy.Integer(8192),)
        return (
            replace(step, operand=replace(step.operand, row_strides=strides))
            if isinstance(step, Store)
            else step
        )

    wider = replace(program, tasks=(replace(task, steps=tuple(map(strided, task.steps))),))
    programs_ = (program, programs("add_rms_norm"), of_dtype(torch.float16), wider)
    assert len(set(map(kernel_key, programs_))) == 4


def test_sizes_that_are_symbols_may_stand_in_strides(programs: Programs) -> None:
    """The positions of mrope are strided by the number of tokens."""
    program = programs("mrope")
    (task,) = program.tasks
    other = sympy.Symbol("s5", integer=True, positive=True)
    load = task.steps[0]
    assert isinstance(load, Load)
    renamed = replace(load, operand=replace(load.operand, feature_stride=other))
    elsewhere = replace(program, tasks=(replace(task, rows=(other,), steps=(renamed, *task.steps[1:])),))
    assert kernel_key(elsewhere) == kernel_key(program)


def test_rows_take_what_was_found_for_their_range(programs: Programs) -> None:
    program = programs("add_rms_norm")
    tuning = table(program, (64, FAST), (2048, choose(program)))
    found = {rows: tuning.launch_of(of_rows(program, rows)) for rows in (63, 64, 127, 128, 2047, 4095)}
    assert found == {63: None, 64: FAST, 127: FAST, 128: None, 2047: None, 4095: choose(program)}
    assert Tuning("a GPU").launch_of(of_rows(program, 64)) is None
    assert tuning.launch_of(of_rows(programs("swiglu"), 64)) is None


def test_symbolic_rows_take_what_all_ranges_agree_on(programs: Programs) -> None:
    program = programs("add_rms_norm")
    assert table(program, (64, FAST), (2048, FAST)).launch_of(program) == FAST
    assert table(program, (64, FAST), (2048, choose(program))).launch_of(program) is None
    assert table(program, (64, FAST)).launch_of(program) is None, "one range says nothing of the others"


def test_a_launch_of_another_number_of_tasks_is_no_launch(programs: Programs) -> None:
    program = programs("add_rms_norm")
    assert table(program, (64, Launch(8, 1, (1, 1)))).launch_of(of_rows(program, 64)) is None


def test_rows_of_a_pack_are_those_of_its_largest_task(programs: Programs) -> None:
    assert most_rows(of_rows(programs("head_norm_rope"), 3)) == 192
    assert most_rows(of_rows(programs("decode_pack"), 3)) == 3


def test_ranges_are_powers_of_two() -> None:
    assert [range_of(rows) for rows in (1, 2, 3, 4, 7, 8, 1023, 1024)] == [1, 2, 2, 4, 4, 8, 512, 1024]


@pytest.mark.parametrize("name", ["add_rms_norm", "head_norm_rope", "decode_pack", "swiglu", "layer_norm"])
def test_candidates_can_be_generated_and_the_default_is_none_of_them(name: str, programs: Programs) -> None:
    program = programs(name)
    found = candidates(program)
    assert len(found) > 3
    assert len(set(found)) == len(found)
    assert choose(program) not in found
    for launch in found:
        assert emit(program, launch).launch == launch


# --- tables and files ---


def test_newer_findings_replace_older_ones(programs: Programs) -> None:
    program = programs("add_rms_norm")
    first = table(program, (64, FAST), (1, FAST))
    second = first.including(table(program, (100, choose(program))).entries)
    assert [(e.lowest, e.launch) for e in second.entries] == [(1, FAST), (64, choose(program))]


def test_a_table_is_part_of_a_key(programs: Programs) -> None:
    first, second = table(programs("swiglu"), (64, FAST)), table(programs("swiglu"), (128, FAST))
    assert pickle.loads(pickle.dumps(first)) == first
    assert len({first.digest, second.digest, Tuning("a GPU").digest, replace(first, gpu="other").digest}) == 4
    slower = replace(first, entries=tuple(replace(e, us=9.0) for e in first.entries))
    assert slower.digest == first.digest, "times change no kernel"


def test_a_file_is_read_as_it_was_written(programs: Programs) -> None:
    tuning = table(programs("decode_pack"), (1, Launch(4, 1, (1, 2, 8))), (64, Launch(8, 1, (2, 4, 16))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_tuning("a GPU / 80 GB") == Tuning("a GPU / 80 GB")
        write_tuning(replace(tuning, gpu="a GPU / 80 GB"))
        assert read_tuning("a GPU / 80 GB") == replace(tuning, gpu="a GPU / 80 GB")


DAMAGED = {
    "no JSON": (lambda record: "{", "it is damaged"),
    "no object": (lambda record: "[]", "it is damaged"),
    "no entries": (lambda record: json.dumps({k: v for k, v in record.items() if k != "entries"}), "damaged"),
    "an older format": (lambda record: json.dumps(record | {"format": 0}), "its format is 0, not 1"),
    "another GPU": (lambda record: json.dumps(record | {"gpu": "B"}), "its gpu is 'B', not 'A'"),
    "another compiler": (lambda record: json.dumps(record | {"triton": "2.0"}), "its triton is '2.0', not"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_cannot_be_used_is_left_with_one_warning(kind: str, programs: Programs) -> None:
    change, reason = DAMAGED[kind]
    path = write_tuning(replace(table(programs("swiglu"), (64, FAST)), gpu="A"))
    path.write_text(change(json.loads(path.read_text())))
    with pytest.warns(KernelweldWarning, match=reason) as seen:
        assert read_tuning("A") == Tuning("A")
    assert len(seen) == 1
    text = str(seen[0].message)
    assert "\n" not in text
    assert str(path) in text
    assert text.endswith("Write them anew with kernelweld bench --tune.")


@pytest.mark.parametrize(
    "entry",
    [{"num_warps": 3}, {"num_warps": "8"}, {"rows": [3]}, {"rows": [0]}, {"rows": 1}, {"num_stages": 0}],
    ids=str,
)
def test_no_launch_that_cannot_be_launched_is_read(entry: dict[str, object], programs: Programs) -> None:
    path = write_tuning(replace(table(programs("swiglu"), (64, FAST)), gpu="A"))
    record = json.loads(path.read_text())
    record["entries"][0]["launch"] |= entry
    path.write_text(json.dumps(record))
    with pytest.warns(KernelweldWarning, match="it is damaged"):
        assert read_tuning("A").entries == ()


def test_the_file_says_what_it_is_of() -> None:
    record = json.loads(write_tuning(Tuning("A")).read_text())
    assert record == {"format": 1, "gpu": "A", "triton": triton.__version__, "entries": []}
    assert path_of("NVIDIA H200 (80 GB)").name == "NVIDIA-H200-80-GB.json"
