"""Graphs before and after a change under common names, and the lines that differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.ir.alignment import Point
from kernelweld.ir.changes import Hunk, hunks
from kernelweld.ir.printer import format_graph

aten = torch.ops.aten


def graph_module() -> fx.GraphModule:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = (x.exp() + y).sin()
        return a * y, (a - y).cos()

    return make_fx(fn, tracing_mode="fake")(torch.empty(3, 4), torch.empty(3, 4))


BEFORE = [
    "%0: f32[3, 4] = input",
    "%1: f32[3, 4] = input",
    "%2: f32[3, 4] = exp(%0)",
    "%3: f32[3, 4] = add(%2, %1)",
    "%4: f32[3, 4] = sin(%3)",
    "%5: f32[3, 4] = mul(%4, %1)",
    "%6: f32[3, 4] = sub(%4, %1)",
    "%7: f32[3, 4] = cos(%6)",
    "return %5, %7",
]


def call(graph: fx.Graph, target: object, before: fx.Node, *args: object) -> fx.Node:
    """A new call before a node, of its type."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args)  # type: ignore[arg-type]
    node.meta["val"] = before.meta["val"]
    return node


def node_of(graph: fx.Graph, target: object) -> fx.Node:
    (node,) = graph.find_nodes(op="call_function", target=target)
    return node


def one_more(graph: fx.Graph) -> None:
    """A value more, early: every number after it is another."""
    exp = node_of(graph, aten.exp.default)
    new = call(graph, aten.neg.default, exp, exp.args[0])
    exp.args = (new,)


def in_place(graph: fx.Graph) -> None:
    node_of(graph, aten.exp.default).target = aten.tanh.default


def replaced(graph: fx.Graph) -> None:
    """Two nodes become one, which stands for the second of them."""
    add, sin = node_of(graph, aten.add.Tensor), node_of(graph, aten.sin.default)
    sin.replace_all_uses_with(call(graph, aten.atan2.default, sin, *add.args))
    graph.erase_node(sin)
    graph.erase_node(add)


def restored(graph: fx.Graph) -> None:
    """All calls are other nodes that compute the same."""
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        node.replace_all_uses_with(call(graph, node.target, node, *node.args))
        graph.erase_node(node)


def lines_after(change: Callable[[fx.Graph], None]) -> list[str]:
    gm = graph_module()
    point = Point(gm.graph)
    assert list(point.lines) == BEFORE == format_graph(gm.graph).splitlines()
    change(gm.graph)
    return list(point.lines_of(gm.graph))


@pytest.mark.parametrize(
    ("change", "gone", "come"),
    [
        (lambda graph: None, [], []),
        (one_more, [BEFORE[2]], ["%8: f32[3, 4] = neg(%0)", "%2: f32[3, 4] = exp(%8)"]),
        (in_place, [BEFORE[2]], ["%2: f32[3, 4] = tanh(%0)"]),
        (replaced, BEFORE[3:5], ["%4: f32[3, 4] = atan2(%2, %1)"]),
        (restored, [], []),
    ],
)
def test_only_what_changed_differs(
    change: Callable[[fx.Graph], None], gone: list[str], come: list[str]
) -> None:
    after = lines_after(change)
    assert [line for line in BEFORE if line not in after] == gone
    assert [line for line in after if line not in BEFORE] == come


def test_what_is_computed_alike_is_the_same_wherever_it_is_read() -> None:
    gm = make_fx(lambda x: x.exp() - x.sin(), tracing_mode="fake")(torch.empty(3, 4))
    point = Point(gm.graph)
    restored(gm.graph)
    sub = node_of(gm.graph, aten.sub.Tensor)
    sub.args = sub.args[::-1]
    lines = point.lines_of(gm.graph)
    assert [line for line in lines if line not in point.lines] == ["%3: f32[3, 4] = sub(%2, %1)"]


def test_values_of_other_types_do_not_stand_for_each_other() -> None:
    def change(graph: fx.Graph) -> None:
        sin = node_of(graph, aten.sin.default)
        new = call(graph, aten.sum.default, sin, sin.args[0])
        new.meta["val"] = torch.empty((), device="meta")
        sin.replace_all_uses_with(new)
        graph.erase_node(sin)

    assert "%8: f32[] = sum(%3)" in lines_after(change)


def test_names_are_never_given_twice() -> None:
    for change in (one_more, in_place, replaced, restored):
        names = [line.split(":")[0] for line in lines_after(change)[:-1]]
        assert len(set(names)) == len(names)


# --- lines that differ ---


def test_hunks_stand_beside_each_other_by_name() -> None:
    left, right = ["%0 = a", "%1 = b", "%2 = c", "%3 = d"], ["%0 = a", "%2 = e", "%9 = f", "%3 = d"]
    (hunk,) = hunks(left, right, 1)
    assert hunk == Hunk(
        1,
        1,
        (
            ("%0 = a", "%0 = a"),
            ("%1 = b", None),
            ("%2 = c", "%2 = e"),
            (None, "%9 = f"),
            ("%3 = d", "%3 = d"),
        ),
    )
    assert hunk.title == "@@ -1,4 +1,4 @@"
    assert list(hunk.unified()) == [" %0 = a", "-%1 = b", "-%2 = c", "+%2 = e", "+%9 = f", " %3 = d"]


def test_hunks_of_equal_texts_and_far_apart() -> None:
    lines = [f"{i} line" for i in range(40)]
    assert hunks(lines, lines) == []
    other = [line.upper() if line in ("3 line", "30 line") else line for line in lines]
    first, second = hunks(lines, other, 2)
    assert (first.left, first.right, first.title) == (2, 2, "@@ -2,5 +2,5 @@")
    assert (second.left, len(second.rows)) == (29, 5)
    assert [row for row in hunks(lines, other, 0)[1].rows] == [("30 line", "30 LINE")]
