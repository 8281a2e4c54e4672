"""The graphs of a target, captured as ``fuse`` would see them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.fx import GraphModule

from kernelweld.cli.render import messages
from kernelweld.cli.targets import Target
from kernelweld.errors import BadTarget, KernelweldError
from kernelweld.integrations.aot import Capture, capture
from kernelweld.integrations.settings import VARIABLE, chosen_pipeline
from kernelweld.passes.merge_gemms import prepare
from kernelweld.passes.pipeline import DEFAULT, Pipeline

#: The pipeline of ``fuse``, with kernels whatever the device: what a GPU would run is what is counted.
PIPELINE = DEFAULT.replace("route", "route{target=triton}").replace("lower", "lower{target=triton}")


def pipeline_of(option: str | None) -> str:
    """The pipeline of a command line: that of its option, of the environment, or ``PIPELINE``.

    Raises what is wrong with it: mistakes show before a model is built.
    """
    text = chosen_pipeline(PIPELINE) if option is None else option
    Pipeline.from_text(text)
    if option is None and text != PIPELINE:
        messages().print(f"{VARIABLE} is set: {text}", markup=False, soft_wrap=True)
    return text


def captured(target: Target, *, merge: bool = True, stop: bool = False) -> Capture:
    """The post-grad graphs of one call of ``target``; ``merge`` merges its sibling linear layers first.

    With ``stop`` the call ends at its first graph: on the meta device nothing can be run.
    """
    if target.graphs:
        return Capture(tuple(map(_copied, target.graphs)), ((),) * len(target.graphs), (), 0.0)
    with refusing(target.name), _quiet_dynamo():
        if merge and isinstance(target.fn, nn.Module):
            prepare(target.fn, *target.fresh_inputs())
        found = capture(target.fn, *target.fresh_inputs(), stop=stop)
    if not found.graphs:
        raise BadTarget(target.name, "nothing in it was compiled", "Give something that computes on tensors.")
    return found


def _copied(graph: GraphModule) -> GraphModule:
    return GraphModule(graph, copy.deepcopy(graph.graph))


@contextmanager
def _quiet_dynamo() -> Iterator[None]:
    """Without Dynamo's remarks on decorators inside the model, which its user can do nothing about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Dynamo detected a call to a", category=UserWarning)
        yield


@contextmanager
def refusing(target: str) -> Iterator[None]:
    """Turns what a target's own code raises into ``BadTarget``."""
    try:
        yield
    except KernelweldError:
        raise
    except Exception as error:  # a model of any origin raises what it likes
        first = next(iter(str(error).strip().splitlines()), "")
        reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
        advice = "Build and call it in plain torch first: what fails there fails here."
        if isinstance(error, TypeError) and "required positional argument" in reason:
            advice = "A target is called without arguments, and returns (model_or_function, args, kwargs)."
        raise BadTarget(target, reason, advice) from error
