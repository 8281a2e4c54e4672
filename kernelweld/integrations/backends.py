"""The ways a graph is compiled: Inductor with kernelweld's pass, or without Inductor, by Triton's
interpreter or eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch._inductor.compile_fx import compile_fx

from kernelweld.codegen.interpreter import exact_casts, interpreting
from kernelweld.codegen.tuning_file import gpu_name, read_tuning
from kernelweld.errors import NotInterpreting
from kernelweld.integrations import store
from kernelweld.integrations.aot import aot_backend
from kernelweld.integrations.hook import KernelweldPass, collecting
from kernelweld.integrations.settings import Settings
from kernelweld.ir.report import GraphReport

Compiled = Callable[..., object]
Backend = Callable[[fx.GraphModule, Sequence[object]], tuple[Compiled, Sequence[GraphReport]]]


def backend_for(settings: Settings) -> Backend:
    """The backend that ``settings`` name."""
    makers = {"auto": inductor_backend, "interpret": interpreter_backend, "eager": eager_backend}
    return makers[settings.backend](settings)


def inductor_backend(settings: Settings) -> Backend:
    """Inductor, with the pipeline at ``post_grad_custom_post_pass``. On a compile-cache hit the stored
    reports are read.
    """
    hook = _hook(settings)
    patches: dict[str, object] = {**_mode(settings), **settings.inductor, "post_grad_custom_post_pass": hook}

    def compile_graph(gm: fx.GraphModule, inputs: Sequence[object]) -> tuple[Compiled, Sequence[GraphReport]]:
        uuid = hook.uuid()
        key = None if uuid is None else store.key_of(gm, inputs, uuid)
        with collecting() as reports:
            compiled = compile_fx(gm, inputs, config_patches=patches)  # type: ignore[arg-type]
        if key is None:
            return compiled, reports  # type: ignore[return-value]
        if reports:
            store.save(key, reports)
        return compiled, reports or store.read(key)  # type: ignore[return-value]

    return compile_graph


def _hook(settings: Settings) -> KernelweldPass:
    """The pass that ``settings`` ask for; measured launches are read here, once, and are part of its key."""
    tuning = read_tuning(gpu_name()) if settings.tuned else None
    return KernelweldPass(settings.text, settings.strict, tuning)


def _mode(settings: Settings) -> dict[str, object]:
    if settings.mode in (None, "default"):
        return {}
    modes: dict[str, object] = torch._inductor.list_mode_options(settings.mode, settings.dynamic)
    return modes


def interpreter_backend(settings: Settings) -> Backend:
    """The generated Triton in Triton's interpreter, everything else eagerly: slow, exact, and on any
    machine.
    """
    if not interpreting():
        raise NotInterpreting
    backend = eager_backend(settings)

    def compile_graph(gm: fx.GraphModule, inputs: Sequence[object]) -> tuple[Compiled, Sequence[GraphReport]]:
        compiled, reports = backend(gm, inputs)

        def run(*args: object) -> object:
            with exact_casts():
                return compiled(*args)

        return run, reports

    return compile_graph


def eager_backend(settings: Settings) -> Backend:
    """The pipeline on Inductor's post-grad graph, which then runs op by op: for debugging, and where
    no compiler is installed.
    """
    hook = _hook(settings)

    def compile_graph(gm: fx.GraphModule, inputs: Sequence[object]) -> tuple[Compiled, Sequence[GraphReport]]:
        with collecting() as reports:
            compiled = aot_backend(lambda post_grad: hook(post_grad.graph))(gm, inputs)
        return compiled, reports

    return compile_graph
