"""Every norm, rotation and gate of eleven ``transformers`` models becomes a word.

What there is to find is counted from the models themselves, in one eager run: modules by class, calls of
their rotary and L2 norm functions, gates by their sources. No number is written down here.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from kernelweld.cli.targets import Target, resolve
from kernelweld.integrations.aot import capture
from kernelweld.ir import word_of
from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize import CanonicalizePass
from kernelweld.passes.raise_words import RaisePass, unraise
from kernelweld.patterns.table import patterns

pytestmark = [pytest.mark.hf, pytest.mark.slow]

MODELS = (
    "deepseek_v32",
    "minimax_m2",
    "qwen3_5_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3",
    "llama",
    "gemma2",
    "mistral",
    "glm4",
    "olmo2",
)
PHASES = ("prefill", "decode")
COUNTED = ("rms_norm", "layer_norm", "l2_norm", "rope", "gate_mul")

#: Left out: ``topk(sorted=False)`` leaves the order of experts free, and sums over them follow it.
ROUTERS = ("expert_topk", "router_scores")

#: A sigmoid that multiplies, as model code writes output gates and shared-expert gates.
SIGMOID_GATE = re.compile(r"\*\s*(?:torch|F)\.sigmoid\(|(?:torch|F)\.sigmoid\(.*\)\s*\*")


def module_kinds(module: nn.Module) -> Counter[str]:
    """The words that one execution of ``module`` itself, without its children, asks for."""
    name, kinds = type(module).__name__, Counter[str]()
    if "RMSNorm" in name:
        kinds["rms_norm"] += 1
    elif "LayerNorm" in name:
        kinds["layer_norm"] += 1
    parts = {*dict(module.named_children()), *dict(module.named_parameters(recurse=False))}
    if {"act_fn", "activation_fn"} & set(dir(module)) and {"gate_proj", "gate_up_proj"} & parts:
        kinds["gate_mul"] += 1
    kinds["gate_mul"] += len(SIGMOID_GATE.findall(inspect.getsource(type(module).forward)))
    return kinds


def function_kinds(name: str, result: Any) -> Counter[str]:
    """The words that a call of a model's function asks for: one rotation for each tensor it returns."""
    if name.startswith("apply_rotary_pos_emb"):
        return Counter(rope=len(result) if isinstance(result, tuple) else 1)
    return Counter(l2_norm=1) if name == "l2norm" else Counter()


@contextmanager
def census(model: nn.Module) -> Iterator[Counter[str]]:
    """Counts what the forwards of ``model`` in this block execute."""
    counts: Counter[str] = Counter()

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            counts.update(function_kinds(name, result))
            return result

        return call

    source = sys.modules[type(model).__module__]
    with ExitStack() as stack:
        for module in model.modules():
            hook = module.register_forward_hook(lambda m, args, out: counts.update(module_kinds(m)))
            stack.callback(hook.remove)
        for name, function in inspect.getmembers(source, inspect.isfunction):
            if function.__module__ == source.__name__:
                stack.enter_context(mock.patch.object(source, name, counted(function, name)))
        yield counts


def executed(target: Target) -> Counter[str]:
    """What one eager call of the target executes."""
    model = target.fn
    assert isinstance(model, nn.Module)
    args, kwargs = target.fresh_inputs()
    with census(model) as counts, torch.no_grad():
        model(*args, **kwargs)
    return +counts


@dataclass(frozen=True)
class Case:
    """One graph with its inputs, and what the model executes for it."""

    gm: fx.GraphModule
    inputs: tuple[object, ...]
    counts: Counter[str]

    def run(self) -> list[torch.Tensor]:
        """The tensors that the graph returns for its inputs."""
        arguments = [x.clone() if isinstance(x, torch.Tensor) else x for x in self.inputs]
        return [x for x in pytree.tree_leaves(self.gm(*arguments)) if isinstance(x, torch.Tensor)]


def captured(name: str, phase: Any, cache: Any, *, dynamic: bool | None = None) -> Case:
    target = resolve(f"hf:{name}", phase=phase, batch=2, cache=cache)
    counts = executed(target)
    args, kwargs = target.fresh_inputs()
    found = capture(target.fn, args, kwargs, dynamic=dynamic)
    (gm,), (inputs,) = found.graphs, found.inputs
    return Case(gm, inputs, counts)


def check(case: Case) -> None:
    """Raises all, misses none, and changes no bit on the way there and back."""
    before = case.run()
    CanonicalizePass().run(case.gm, PassContext())
    case.gm.recompile()
    canonical = case.run()
    context = PassContext()
    RaisePass(tuple(name for name in patterns() if name not in ROUTERS)).run(case.gm, context)
    case.gm.graph.lint()
    case.gm.recompile()
    words = Counter(word.kind for node in case.gm.graph.nodes if (word := word_of(node)) is not None)
    assert {kind: words[kind] for kind in COUNTED} == {kind: case.counts[kind] for kind in COUNTED}
    assert words["rope_table"] == 1
    assert context.near_misses == []
    raised = case.run()
    unraise(case.gm)
    for results in (canonical, raised, case.run()):
        assert all(torch.equal(a, b) for a, b in zip(before, results, strict=True))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", MODELS)
def test_dynamic_cache(name: str, phase: str) -> None:
    check(captured(name, phase, "dynamic"))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["deepseek_v32", "minimax_m2", "qwen3_5_moe"])
def test_static_cache(name: str, phase: str) -> None:
    """Caches of a fixed size, written in place."""
    check(captured(name, phase, "static"))


@pytest.mark.parametrize(
    ("name", "phase"), [("llama", "decode"), ("glm4", "prefill"), ("deepseek_v32", "prefill")]
)
def test_symbolic_sizes(name: str, phase: str) -> None:
    """``dynamic=True``: batch and time are symbols, eps and scales stay numbers."""
    check(captured(name, phase, "dynamic", dynamic=True))


def test_the_census_counts() -> None:
    """The counts are those of the models' structure: a layer's norms times layers, and the final one."""
    target = resolve("hf:llama", phase="prefill", layers=2)
    counts = executed(target)
    assert counts == Counter(rms_norm=2 * 2 + 1, rope=2 * 2, gate_mul=2)
