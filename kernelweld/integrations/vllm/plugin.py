"""The ``vllm.general_plugins`` entry point: it watches workers, and changes nothing in them."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from kernelweld.integrations.vllm.log import log

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

_MARK = "_kernelweld_watched"


def register() -> None:
    """Has every worker of this process log one line when it is ready: what was welded, or why nothing was.

    vLLM calls it in each of its processes, before there are workers. Calling it again changes nothing.
    """
    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        made = WorkerWrapperBase.init_worker
    except (ImportError, AttributeError) as error:
        log.debug("no summary: this vLLM has no workers of the kind that is known (%s)", error)
        return
    if getattr(made, _MARK, False):
        return

    @functools.wraps(made)
    def init_worker(wrapper: WorkerWrapperBase, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401 # vLLM's
        result = made(wrapper, *args, **kwargs)
        _watch(wrapper.worker)
        return result

    setattr(init_worker, _MARK, True)
    WorkerWrapperBase.init_worker = init_worker


def _watch(worker: Any) -> None:  # noqa: ANN401 # of the platform's class
    """Adds the line to ``worker.compile_or_warm_up_model``, behind which all graphs are compiled."""
    ready = worker.compile_or_warm_up_model

    @functools.wraps(ready)
    def compile_or_warm_up_model(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401 # vLLM's
        result = ready(*args, **kwargs)
        _say(worker.vllm_config)
        return result

    worker.compile_or_warm_up_model = compile_or_warm_up_model


def _say(config: Any) -> None:  # noqa: ANN401 # vLLM's
    """Logs the summary; whatever is wrong with it is no reason to fail."""
    from kernelweld.integrations.vllm.outcome import outcome

    try:
        told = outcome(config)
    except Exception as error:
        log.debug("no summary: %s: %s (process %d)", type(error).__name__, error, os.getpid())
        return
    if told is not None:
        log.info("%s", told)
