"""Every rule of the verifier: a sound graph breaks none, and each way to break one is found and named."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.errors import InvalidGraph
from kernelweld.ir import RMSNorm, insert_word
from kernelweld.ir.verifier import check, verify

aten = torch.ops.aten


def sound_graph(mode: str = "fake") -> fx.Graph:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.exp() * w

    return make_fx(fn, tracing_mode=mode)(torch.empty(3, 64), torch.empty(64)).graph


def with_word(mode: str = "fake", **fields: object) -> tuple[fx.Graph, fx.Node]:
    """``sound_graph`` with its product replaced by a float32 RMSNorm, whose value agrees."""
    graph = sound_graph(mode)
    x, w = graph.find_nodes(op="placeholder")
    product = graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0]
    with graph.inserting_before(product):
        word = insert_word(graph, RMSNorm(eps=1e-6, **fields), [x, w, None])
    word.meta["val"] = product.meta["val"]
    product.replace_all_uses_with(word)
    return graph, word


def rules(graph: fx.Graph) -> list[str]:
    return [violation.rule for violation in verify(graph)]


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_sound_graphs_break_no_rule(mode: str) -> None:
    assert verify(sound_graph(mode)) == ()
    assert verify(with_word(mode)[0]) == ()


def test_an_operand_after_its_use() -> None:
    graph = sound_graph()
    exp = graph.find_nodes(op="call_function", target=aten.exp.default)[0]
    product = graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0]
    product.append(exp)
    (violation,) = verify(graph)
    assert (violation.rule, violation.message) == ("order", "operand exp is defined after this use")
    assert violation.line == "%2: f32[3, 64] = mul(%3, %1)"


def test_an_operand_of_another_graph() -> None:
    graph, other = sound_graph(), sound_graph()
    graph.find_nodes(op="call_function", target=aten.exp.default)[0].args = (next(iter(other.nodes)),)
    assert "operand x_1 is defined outside this graph" in [v.message for v in verify(graph)]


def test_user_lists_that_disagree_with_the_arguments() -> None:
    graph = sound_graph()
    x, w = graph.find_nodes(op="placeholder")
    exp = graph.find_nodes(op="call_function", target=aten.exp.default)[0]
    x.users.pop(exp)
    w.users[exp] = None
    assert [(v.rule, v.message) for v in verify(graph)] == [
        ("users", "user exp does not read it"),
        ("users", "operand x_1 does not count this node among its users"),
    ]


def test_a_missing_output_and_a_second_one() -> None:
    graph = sound_graph()
    output = graph.output_node()
    graph.output(output.args[0])
    assert rules(graph) == ["output"]
    for node in graph.find_nodes(op="output"):
        graph.erase_node(node)
    (violation,) = verify(graph)
    assert violation.message == "the graph does not end in an output node"


def test_a_value_without_shape() -> None:
    graph = sound_graph()
    del graph.find_nodes(op="call_function", target=aten.exp.default)[0].meta["val"]
    (violation,) = verify(graph)
    assert (violation.rule, violation.line) == ("value", "%2 = exp(%0)")


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_word_whose_recorded_dtype_is_wrong(mode: str) -> None:
    graph, _ = with_word(mode, dtype=torch.bfloat16)
    (violation,) = verify(graph)
    assert violation.rule == "word"
    assert violation.message.startswith("the word gives bf16[")
    assert ", recorded is f32[" in violation.message


def test_a_word_whose_recorded_shape_is_wrong() -> None:
    graph, word = with_word()
    word.meta["val"] = word.meta["val"].transpose(0, 1)
    (violation,) = verify(graph)
    assert violation.message == "the word gives f32[3, 64], recorded is f32[64, 3]"


def test_a_word_that_cannot_run() -> None:
    graph, word = with_word()
    weight = word.args[1]
    weight.meta["val"] = weight.meta["val"].new_empty(65)
    (violation,) = verify(graph)
    assert violation.message.startswith("the word cannot run on its operands: ")


def test_symbolic_checks_add_no_guard() -> None:
    graph, word = with_word("symbolic")
    shape_env = word.meta["val"].fake_mode.shape_env
    before = len(shape_env.guards)
    verify(graph)
    assert len(shape_env.guards) == before


def test_only_inputs_may_be_written() -> None:
    graph = sound_graph()
    x, _ = graph.find_nodes(op="placeholder")
    exp = graph.find_nodes(op="call_function", target=aten.exp.default)[0]
    with graph.inserting_before(graph.output_node()):
        for target in (x, exp):
            graph.call_function(aten.copy_.default, (target, exp)).meta["val"] = x.meta["val"]
    (violation,) = verify(graph)
    assert (violation.rule, violation.message) == ("mutation", "it writes to exp, which is not a graph input")
    assert violation.line.endswith("copy_(%2, %2)")


def test_torch_lint_is_part_of_it() -> None:
    graph = sound_graph()
    fx.GraphModule(torch.nn.Module(), graph)
    with graph.inserting_before(graph.output_node()):
        graph.create_node("get_attr", "absent").meta["val"] = None
    assert rules(graph) == ["lint"]


def test_check_raises_all_of_them() -> None:
    graph = sound_graph()
    for node in graph.nodes:
        node.meta.pop("val", None)
    with pytest.raises(InvalidGraph) as error:
        check(graph)
    assert len(error.value.violations) == 4
    assert str(error.value).startswith('the graph breaks 4 rules of the IR\n    value: no meta["val"]\n')


def test_check_passes_a_sound_graph() -> None:
    check(sound_graph())
