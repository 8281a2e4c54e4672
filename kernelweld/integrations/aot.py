"""Post-grad graphs without Inductor's code generation.

Inductor's own front half runs (Dynamo, pre-grad, AOTAutograd, joint-graph and post-grad passes) and is
stopped at the position of ``post_grad_custom_post_pass``. What is seen there is what a pass sees under
``torch.compile``, op by op, but the graph is then run eagerly: it is the reference every weld is judged
against, and it needs no compiler, no GPU and, on the meta device, no weights.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
import torch._dynamo
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters
from torch._inductor.compile_fx import compile_fx, fake_tensor_prop
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule

GraphHook = Callable[[GraphModule], None]
Backend = Callable[[GraphModule, Sequence[object]], Callable[..., object]]
Runner = Callable[[list[object]], object]


class _Reached(BaseException):
    """Leaves Inductor's post-grad passes at the custom pass; never seen outside this file."""


class _Stopped(BaseException):
    """Ends a capture before its graph runs; a BaseException, so no model code swallows it."""


@dataclass(frozen=True)
class Capture:
    """What one call of a function compiled to.

    Attributes:
        graphs: One functional post-grad ATen graph for each compiled region, in order of compilation, as a
            copy: it may be run or rewritten. Every value node has ``meta["val"]``.
        inputs: For each graph the flat arguments of its first run, parameters included. Tensors that the
            graph writes to are copies made before that run, so ``graph(*inputs)`` repeats it; the others
            are live.
        breaks: The reason of each graph break, on one line, with its count when it occurred more than once.
        seconds: Wall-clock time of the whole call.
    """

    graphs: tuple[GraphModule, ...]
    inputs: tuple[tuple[object, ...], ...]
    breaks: tuple[str, ...]
    seconds: float


def aot_backend(on_graph: GraphHook) -> Backend:
    """Return a ``torch.compile`` backend that shows each graph to ``on_graph``, then runs it eagerly.

    ``on_graph`` may rewrite the graph in place. It is called where Inductor calls
    ``post_grad_custom_post_pass``, with a functional graph that ends in one ``copy_`` for each mutated
    input. Compile under ``torch._dynamo.config.patch(specialize_float=True)``: otherwise eps and scales
    become graph inputs when shapes are dynamic.
    """

    def finish(gm: GraphModule) -> Runner:
        on_graph(gm)
        gm.recompile()
        return lambda args: gm.forward(*args)

    return _backend(finish)


def capture(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic: bool | None = None,
    stop: bool = False,
) -> Capture:
    """Call ``fn`` once under ``torch.no_grad`` and return its post-grad graphs.

    ``fn`` is a function or an ``nn.Module``. With ``stop`` the call ends when the first graph would run: a
    meta-device model is then captured at the price of its compilation alone. Compiled code of the whole
    process is dropped before and after (other compiled functions compile again at their next call), so that
    repeated captures neither hit Dynamo's recompile limit nor inherit dynamic shapes from one another.
    """
    log = _Log(stop)
    before = Counter(counters["graph_break"])
    start = time.perf_counter()
    with _fresh_dynamo(), torch.no_grad():
        compiled = torch.compile(fn, backend=_backend(log.finish), dynamic=dynamic)
        with suppress(_Stopped):
            compiled(*args, **(kwargs or {}))
    seconds = time.perf_counter() - start
    breaks = Counter(counters["graph_break"]) - before
    return Capture(tuple(log.graphs), tuple(log.inputs), tuple(map(_one_line, breaks.items())), seconds)


@dataclass
class _Log:
    """Collects the graphs of one capture; ``inputs[i]`` belongs to ``graphs[i]``."""

    stop: bool
    graphs: list[GraphModule] = field(default_factory=list)
    inputs: list[tuple[object, ...]] = field(default_factory=list)

    def finish(self, gm: GraphModule) -> Runner:
        index, writes = len(self.graphs), _written_inputs(gm.graph)
        self.graphs.append(GraphModule(gm, copy.deepcopy(gm.graph)))
        self.inputs.append(())

        def run(args: list[object]) -> object:
            self.inputs[index] = self.inputs[index] or _snapshot(args, writes)
            if self.stop:
                raise _Stopped
            return gm.forward(*args)

        gm.recompile()
        return run


def _backend(finish: Callable[[GraphModule], Runner]) -> Backend:
    """A backend that takes each graph as far as the custom post pass; ``finish`` makes the rest."""

    def inner_compile(gm: GraphModule, example_inputs: Sequence[object], **options: object) -> Runner:
        _to_post_pass(gm, example_inputs, is_inference=bool(options.get("is_inference")))
        run = finish(gm)

        def boxed(args: list[object]) -> object:
            flat = list(args)
            args.clear()  # AOTAutograd's boxed convention: the caller's references are given up
            return run(flat)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    def backend(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        with _front_half_only(example_inputs):
            return compile_fx(gm, example_inputs, inner_compile=inner_compile)  # type: ignore[arg-type, return-value]

    return backend


def _to_post_pass(gm: GraphModule, example_inputs: Sequence[object], *, is_inference: bool) -> None:
    """Run what Inductor runs on ``gm`` after the joint-graph passes and before its custom post pass."""

    def reached(graph: Graph) -> None:
        raise _Reached

    view_to_reshape(gm)
    with torch.no_grad():
        fake_mode = fake_tensor_prop(gm, example_inputs)  # type: ignore[arg-type]
    try:
        with V.set_fake_mode(fake_mode), inductor_config.patch(post_grad_custom_post_pass=reached):
            post_grad_passes(gm, is_inference=is_inference)
    except _Reached:
        return
    raise RuntimeError("Inductor's post-grad passes ended without calling post_grad_custom_post_pass")


@contextmanager
def _front_half_only(example_inputs: Sequence[object]) -> Iterator[None]:
    """Settings for a run that makes no code.

    A cache hit would skip the passes. Constant folding evaluates what does not depend on inputs: on the meta
    device that is everything, and the graph would collapse to one ``empty_strided``.
    """
    on_meta = any(isinstance(x, torch.Tensor) and x.device.type == "meta" for x in example_inputs)
    folding = inductor_config.joint_graph_constant_folding and not on_meta
    with (
        functorch_config.patch(enable_autograd_cache=False),
        inductor_config.patch(joint_graph_constant_folding=folding),
    ):
        yield


@contextmanager
def _fresh_dynamo() -> Iterator[None]:
    """Code caches empty before and after; module floats (eps, scales) stay constants.

    Not ``torch._dynamo.reset()``: that empties Triton's kernel table too, and graphs already rewritten would
    call missing kernels.
    """
    torch._dynamo.reset_code_caches()
    try:
        with torch._dynamo.config.patch(specialize_float=True):
            yield
    finally:
        torch._dynamo.reset_code_caches()


def _written_inputs(graph: Graph) -> frozenset[int]:
    """Positions of the placeholders that some op of ``graph`` writes to."""
    written = {
        arg
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        for arg in node.all_input_nodes[:1]
    }
    return frozenset(i for i, node in enumerate(graph.find_nodes(op="placeholder")) if node in written)


def _snapshot(args: Sequence[object], writes: frozenset[int]) -> tuple[object, ...]:
    return tuple(x.clone() if i in writes and isinstance(x, torch.Tensor) else x for i, x in enumerate(args))


def _one_line(reason: tuple[str, int]) -> str:
    text, count = reason
    line = next(iter(text.strip().splitlines()), "unknown reason")
    return line if count == 1 else f"{line} (×{count})"
