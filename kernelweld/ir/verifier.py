"""The rules that every graph keeps between passes; what breaks one is shown as the printer shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from kernelweld.errors import InvalidGraph
from kernelweld.ir.printer import Printer, format_value
from kernelweld.ir.vocabulary import word_of


@dataclass(frozen=True)
class Violation:
    """One broken rule: its name, what is wrong in words, and the node's line in the printed graph."""

    rule: str
    message: str
    line: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}\n    {self.line}"


Findings = Iterator[tuple[fx.Node, str, str]]


def verify(graph: fx.Graph) -> tuple[Violation, ...]:
    """All broken rules of ``graph``.

    ``order``: operands stand before their users. ``users``: user lists agree with arguments. ``output``:
    the graph ends in its one output node. ``value``: every value has ``meta["val"]``. ``word``: a word's own
    shape rule gives the recorded value. ``mutation``: only graph inputs are written to. ``lint``: torch's own
    check.
    """
    return _broken(graph, _structure) or _broken(graph, _meaning)  # a misordered graph cannot be evaluated


def check(graph: fx.Graph) -> None:
    """Raises :class:`~kernelweld.errors.InvalidGraph`, which lists all broken rules, if there are any."""
    if violations := verify(graph):
        raise InvalidGraph(tuple(map(str, violations)))


def _broken(graph: fx.Graph, rules: Callable[[fx.Graph], Findings]) -> tuple[Violation, ...]:
    printer = Printer(graph.nodes)
    return tuple(Violation(rule, message, printer.line(node)) for node, rule, message in rules(graph))


def _structure(graph: fx.Graph) -> Findings:
    members, seen = set(graph.nodes), set[fx.Node]()
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            if operand not in seen:
                place = "after this use" if operand in members else "outside this graph"
                yield node, "order", f"operand {operand.name} is defined {place}"
            if node not in operand.users:
                yield node, "users", f"operand {operand.name} does not count this node among its users"
        for user in node.users:
            if user not in members or node not in user.all_input_nodes:
                yield node, "users", f"user {user.name} does not read it"
        seen.add(node)
    yield from _one_output(graph)


def _one_output(graph: fx.Graph) -> Findings:
    nodes = list(graph.nodes)
    outputs = [node for node in nodes if node.op == "output"]
    if nodes and nodes[-1].op != "output":
        yield nodes[-1], "output", "the graph does not end in an output node"
    for extra in outputs[1:]:
        yield extra, "output", "the graph has a second output node"


def _meaning(graph: fx.Graph) -> Findings:
    for node in graph.nodes:
        for rule, problem in ((r, p) for r, check_one in _RULES.items() if (p := check_one(node))):
            yield node, rule, problem
    try:
        graph.lint()
    except (RuntimeError, ValueError) as error:
        yield next(iter(graph.nodes)), "lint", str(error).splitlines()[0]


def _value(node: fx.Node) -> str | None:
    return 'no meta["val"]' if node.op != "output" and "val" not in node.meta else None


def _mutation(node: fx.Node) -> str | None:
    written = [a for a in _written(node) if isinstance(a, fx.Node) and a.op != "placeholder"]
    return f"it writes to {written[0].name}, which is not a graph input" if written else None


def _written(node: fx.Node) -> Iterator[object]:
    if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        for i, argument in enumerate(node.target._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)


def _word(node: fx.Node) -> str | None:
    if word_of(node) is None or "val" not in node.meta:
        return None
    if missing := [n for n in node.all_input_nodes if "val" not in n.meta]:
        return f"operand {missing[0].name} has no value to run the word on"
    try:
        computed = _run(node)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return f"the word cannot run on its operands: {str(error).splitlines()[0]}"
    recorded = node.meta["val"]
    if _same(computed, recorded):
        return None
    return f"the word gives {format_value(computed)}, recorded is {format_value(recorded)}"


_RULES: dict[str, Callable[[fx.Node], str | None]] = {"value": _value, "mutation": _mutation, "word": _word}


def _run(node: fx.Node) -> object:
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    with ExitStack() as stack:
        for context in _fake_contexts(args):
            stack.enter_context(context)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _fake_contexts(args: object) -> list[AbstractContextManager[object]]:
    """The fake mode of the values, if they are fake, without new guards: a check changes nothing compiled."""
    mode = detect_fake_mode(args)
    if mode is None:
        return [torch.no_grad()]
    guards = [mode.shape_env.suppress_guards()] if mode.shape_env is not None else []
    return [torch.no_grad(), mode, *guards]


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.dim() == b.dim() and all(map(_equal, a.shape, b.shape))
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    return False


def _equal(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    return statically_known_true(a == b)
