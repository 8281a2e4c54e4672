"""The printed graph: what is on every line, and that nothing on it depends on the machine or the run."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.ir import ResidualAdd, RMSNorm, RopeTable, insert_word
from kernelweld.ir.printer import format_dtype, format_graph, format_value

aten = torch.ops.aten


def trace(fn: Callable[..., object], *args: torch.Tensor, mode: str = "fake") -> fx.Graph:
    return make_fx(fn, tracing_mode=mode)(*args).graph


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def word_graph(word: RMSNorm | ResidualAdd, *shapes: tuple[int, ...]) -> fx.Graph:
    graph = fx.Graph()
    operands = [graph.placeholder(f"x{i}") for i in range(len(shapes))]
    for node, shape in zip(operands, shapes, strict=True):
        node.meta["val"] = torch.empty(shape, dtype=torch.bfloat16)
    node = insert_word(graph, word, operands)
    node.meta["val"] = torch.empty(shapes[0], dtype=word.dtype)
    graph.output(node)
    return graph


def test_every_value_has_its_dtype_and_shape() -> None:
    x, w = torch.empty(2, 64, dtype=torch.bfloat16), torch.empty(64, dtype=torch.bfloat16)
    assert format_graph(trace(rms, x, w)) == (
        "%0: bf16[2, 64] = input\n"
        "%1: bf16[64] = input\n"
        "%2: f32[2, 64] = _to_copy(%0, dtype=f32)\n"
        "%3: f32[2, 64] = pow(%2, 2)\n"
        "%4: f32[2, 1] = mean(%3, [-1], True)\n"
        "%5: f32[2, 1] = add(%4, 1e-06)\n"
        "%6: f32[2, 1] = rsqrt(%5)\n"
        "%7: f32[2, 64] = mul(%2, %6)\n"
        "%8: bf16[2, 64] = _to_copy(%7, dtype=bf16)\n"
        "%9: bf16[2, 64] = mul(%8, %1)\n"
        "return %9\n"
    )


def test_words_print_their_fields_that_are_not_default() -> None:
    word = RMSNorm(eps=1e-6, scale="1+w", dtype=torch.bfloat16)
    text = format_graph(word_graph(word, (2, 64), (64,)))
    assert "%2: bf16[2, 64] = rms_norm(%0, %1) {eps=1e-06 scale=1+w dtype=bf16}\n" in text


def test_a_word_with_default_fields_prints_none() -> None:
    text = format_graph(word_graph(ResidualAdd(), (2, 64), (2, 64)))
    assert "%2: f32[2, 64] = residual_add(%0, %1)\n" in text


def test_absent_operands_are_left_out_at_the_end_and_named_in_the_middle() -> None:
    graph = fx.Graph()
    x, gate = graph.placeholder("x"), graph.placeholder("gate")
    bare = insert_word(graph, RMSNorm(1e-6), [x, None, None])
    graph.output((bare, insert_word(graph, RMSNorm(1e-6), [x, None, gate])))
    text = format_graph(graph)
    assert "%2 = rms_norm(%0) {eps=1e-06}\n" in text
    assert "%3 = rms_norm(%0, none, %1) {eps=1e-06}\n" in text


def test_tuple_parameters_and_results() -> None:
    graph = fx.Graph()
    positions, table = graph.placeholder("p"), graph.placeholder("t")
    node = insert_word(graph, RopeTable(sections=(11, 11, 10), section_order="plain"), [positions, table])
    node.meta["val"] = (torch.empty(7, 64), torch.empty(7, 64))
    first = graph.call_function(operator.getitem, (node, 0))
    graph.output(first)
    text = format_graph(graph)
    assert "%2: (f32[7, 64], f32[7, 64]) = rope_table(%0, %1) {sections=11,11,10 section_order=plain}" in text
    assert "%3 = %2[0]\n" in text


def test_symbols_are_renamed_by_order_of_appearance() -> None:
    def reshaped(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.ops.aten.slice(y, 1, 1)

    text = format_graph(trace(reshaped, torch.empty(3, 5, 8), torch.empty(6, 9), mode="symbolic"))
    assert text.startswith("%0: f32[s0, s1, s2] = input\n%1: f32[s3, s4] = input\n")
    assert "[s3, s4 - 1] = slice(%1, 1, 1)\n" in text


def test_the_text_depends_on_neither_names_nor_the_run() -> None:
    x, w = torch.empty(2, 64), torch.empty(64)
    one, other = trace(rms, x, w), trace(rms, x, w)
    for node in other.nodes:
        node._rename(f"renamed_{node.name}")
    assert format_graph(one) == format_graph(other)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_factories_print_without_their_device(device: str) -> None:
    x = torch.empty(4, device=device)
    text = format_graph(trace(lambda x: x + torch.full((4,), 2.0, device=device), x))
    assert "%1: f32[4] = full([4], 2.0)\n" in text


def test_outputs_print_flat_with_none() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((x, None))
    assert format_graph(graph).endswith("return %0, none\n")


def test_operators_of_other_namespaces_keep_their_prefix() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (x,)))
    assert "%1 = _c10d_functional.wait_tensor(%0)\n" in format_graph(graph)


def test_launches_print_the_kernel_and_not_its_index() -> None:
    def rms_1(x: object, y: object) -> None: ...

    graph = fx.Graph()
    x = graph.placeholder("x")
    launch = graph.call_function(
        triton_kernel_wrapper_functional,
        kwargs={
            "kernel_idx": kernel_side_table.add_kernel(rms_1),
            "constant_args_idx": kernel_side_table.add_constant_args({"BLOCK": 128}),
            "grid": [(3, 1, 1)],
            "tma_descriptor_metadata": {},
            "kwargs": {"y": x, "x": x},
            "tensors_to_clone": ["y"],
        },
    )
    launch.meta["val"] = {"y": torch.empty(2, 4)}
    graph.output(launch)
    expected = "%1: {y: f32[2, 4]} = launch rms_1(BLOCK=128, x=%0, y=%0) grid=[(3, 1, 1)]\n"
    assert expected in format_graph(graph)


def test_sources_are_comments_on_request() -> None:
    graph = trace(rms, torch.empty(2, 4), torch.empty(4))
    node = next(n for n in graph.nodes if n.target is aten.rsqrt.default)
    node.meta["stack_trace"] = 'File "/models/llama.py", line 12, in forward\n    x = rsqrt(x)'
    assert "# llama.py:12" not in format_graph(graph)
    assert "= rsqrt(%4)  # llama.py:12\n" in format_graph(graph, sources=True)


def test_values_and_dtypes_alone() -> None:
    assert format_value(torch.empty(2, 3, dtype=torch.float16)) == "f16[2, 3]"
    assert format_value((torch.empty(()), None, 3)) == "(f32[], none, int(3))"
    assert format_dtype(torch.float8_e4m3fn) == "f8e4m3"
    assert format_dtype(torch.complex128) == "complex128"
