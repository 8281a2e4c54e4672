"""What became of a worker's graphs, or why it had none: one line."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelweld.codegen.cache import cache_dir, write_text
from kernelweld.integrations.vllm.configured import VllmPass
from kernelweld.integrations.vllm.statistics import STATISTICS, Statistics, summary
from kernelweld.integrations.vllm.welder import Welder

#: The key under which vLLM keeps configured passes.
KEY = "post_grad_custom_post_pass"


def outcome(config: Any) -> str | None:  # noqa: ANN401 # a VllmConfig of any release
    """One line for the worker whose ``VllmConfig`` is given; None if kernelweld was not asked for.

    On a hit of vLLM's compile cache no pass runs: then it is the record of the start that compiled.
    """
    compilation = config.compilation_config
    given = compilation.inductor_compile_config.get(KEY)
    if type(given) is not VllmPass:
        return None
    reason = Welder(given.options).refusal() or _uncompiled(config)
    if reason is not None:
        return f"inactive: {reason}"
    record = _record(config, given)
    if STATISTICS.pieces:
        if record is not None:
            with suppress(OSError):
                write_text(record, STATISTICS.to_json())
        return summary(STATISTICS.pieces)
    if record is not None and record.is_file():
        pieces = Statistics.from_json(record.read_text(encoding="utf-8")).pieces
        return summary(pieces, ", from vLLM's compile cache")
    return (
        "inactive: no graph came to the pass. If vLLM loaded compiled artefacts from its cache, they hold what "
        "was welded when they were made; VLLM_DISABLE_COMPILE_CACHE=1 compiles anew and tells"
    )


def _record(config: Any, given: VllmPass) -> Path | None:  # noqa: ANN401 # as above
    """The file for what equal processes compile, None where nothing is cached."""
    key = given.uuid()
    if key is None:
        return None
    rank = config.parallel_config.rank
    text = f"{config.compute_hash()} {config.model_config.model} {rank} {key}"
    return cache_dir() / "vllm" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _uncompiled(config: Any) -> str | None:  # noqa: ANN401 # as above
    """Why vLLM compiles no graph of this model, None if it does."""
    compilation = config.compilation_config
    mode = getattr(compilation.mode, "name", str(compilation.mode))
    if config.model_config.enforce_eager:
        return "enforce_eager is on, so vLLM compiles nothing; start it without --enforce-eager"
    if mode == "NONE":
        names = ", ".join(config.model_config.architectures)
        return (
            f"vLLM runs {names} with compilation mode {mode}, so it compiles nothing; start it with "
            "mode 3, if the model can be compiled at all"
        )
    if compilation.backend not in ("", "inductor"):
        return f"vLLM compiles with the backend {compilation.backend!r}, and only Inductor calls passes"
    return None
