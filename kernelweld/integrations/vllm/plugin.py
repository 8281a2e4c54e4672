"""The ``vllm.general_plugins`` entry point: it watches workers, and changes nothing in them."""

from __future__ import annotations

import functools
import logging
import os
from importlib import import_module
from typing import Any

from kernelweld.integrations.vllm.log import log

_MARK = "_kernelweld_watched"


def register() -> None:
    """Has every worker of this process log one line when it is ready: what was welded, or why nothing was.

    vLLM calls it in each of its processes, in a spawned worker's while ``init_worker`` runs there: so it is
    the step behind that which is watched. Calling it again changes nothing.
    """
    try:
        wrappers = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
        made = wrappers.init_device
    except (ImportError, AttributeError) as error:
        log.debug("no summary: this vLLM has no workers of the kind that is known (%s)", error)
        return
    if getattr(made, _MARK, False):
        return

    @functools.wraps(made)
    def init_device(wrapper: Any, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401 # vLLM's
        _watch(wrapper)
        return made(wrapper, *args, **kwargs)

    setattr(init_device, _MARK, True)
    wrappers.init_device = init_device


def _watch(wrapper: Any) -> None:  # noqa: ANN401 # vLLM's
    """Adds the line to its worker's ``compile_or_warm_up_model``, behind which all graphs are compiled."""
    from kernelweld.integrations.vllm.statistics import STATISTICS

    worker = getattr(wrapper, "worker", None)
    ready = getattr(worker, "compile_or_warm_up_model", None)
    if worker is None or ready is None:
        log.debug("no summary: this vLLM has no workers of the kind that is known")
        return
    earlier = len(STATISTICS.pieces)

    @functools.wraps(ready)
    def compile_or_warm_up_model(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401 # vLLM's
        result = ready(*args, **kwargs)
        _say(worker.vllm_config, earlier)
        return result

    worker.compile_or_warm_up_model = compile_or_warm_up_model


def _say(config: Any, earlier: int) -> None:  # noqa: ANN401 # vLLM's
    """Logs what became of the worker; whatever is wrong with that is no reason to fail."""
    from kernelweld.integrations.vllm.outcome import outcome

    try:
        told = outcome(config, earlier)
    except Exception as error:
        log.debug("no summary: %s: %s (process %d)", type(error).__name__, error, os.getpid())
        return
    if told is not None:
        log.log(logging.INFO if told.active else logging.WARNING, "%s", told.line)
