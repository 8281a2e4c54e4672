"""What became of a worker's graphs, or why it had none: one line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelweld.codegen.cache import cache_dir, write_text
from kernelweld.integrations import dump
from kernelweld.integrations.vllm.configured import VllmPass
from kernelweld.integrations.vllm.options import Options
from kernelweld.integrations.vllm.statistics import STATISTICS, Piece, Statistics, summary
from kernelweld.integrations.vllm.welder import Welder

#: The key under which vLLM keeps configured passes.
KEY = "post_grad_custom_post_pass"
#: Modes of compilation in which Inductor sees no graph of the model.
_NO_GRAPHS = ("NONE", "0")


@dataclass(frozen=True)
class Outcome:
    """What is told of one worker, and whether something was welded in it."""

    active: bool
    line: str

    def __str__(self) -> str:
        return self.line

    @classmethod
    def inactive(cls, reason: str) -> Outcome:
        return cls(False, f"inactive: {reason}")

    @classmethod
    def of(cls, pieces: Sequence[Piece], options: Options, source: str = "") -> Outcome:
        """Of the graphs that were compiled, now or (says ``source``) by an earlier start."""
        return cls(any(piece.welds for piece in pieces), summary(pieces, source, options.without))


def outcome(config: Any, earlier: int = 0) -> Outcome | None:  # noqa: ANN401 # a VllmConfig of any release
    """Of the worker whose ``VllmConfig`` is given, in a process that compiled ``earlier`` pieces before it.

    None where there is nothing to tell: kernelweld was not asked for, or has said that it does nothing here.
    On a hit of a compile cache no pass runs: then it is the record of the start that compiled.
    """
    given = config.compilation_config.inductor_compile_config.get(KEY)
    if type(given) is not VllmPass or Welder(given.options).announce():
        return None
    record = _record(config, given)
    compiled = STATISTICS.pieces[earlier:]
    if compiled:
        _write(record, compiled)
        return Outcome.of(compiled, given.options)
    reason = _uncompiled(config)
    if reason is not None:
        return Outcome.inactive(reason)
    recorded = _read(record)
    if recorded:
        return Outcome.of(recorded, given.options, f", from {_cache()}")
    return Outcome.inactive(_nothing_came(given.options))


def _nothing_came(options: Options) -> str:
    limit = options.max_tokens
    ranges = "" if limit is None else f", which wants none for more than {limit} tokens (max_tokens)"
    return (
        f"no graph came to the pass{ranges}. If artefacts were loaded from a cache, they hold what was "
        "welded when they were made; VLLM_DISABLE_COMPILE_CACHE=1 TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 "
        "compiles anew and tells"
    )


def _record(config: Any, given: VllmPass) -> Path | None:  # noqa: ANN401 # as above
    """The file for what equal processes compile, None while graphs are dumped, when no two are equal."""
    if dump.wanted():
        return None
    rank = config.parallel_config.rank
    text = f"{config.compute_hash()} {config.model_config.model} {rank} {given.uuid()}"
    return cache_dir() / "vllm" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _write(record: Path | None, pieces: Sequence[Piece]) -> None:
    """A folder that cannot be written costs the next start its line, and nothing else."""
    if record is not None:
        with suppress(OSError):
            write_text(record, Statistics(list(pieces)).to_json())


def _read(record: Path | None) -> list[Piece]:
    """Empty without a record, and for one that cannot be read."""
    if record is None:
        return []
    try:
        return Statistics.from_json(record.read_text(encoding="utf-8")).pieces
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _cache() -> str:
    """Whose artefacts were loaded: Inductor keeps its own where vLLM keeps none."""
    disabled = os.environ.get("VLLM_DISABLE_COMPILE_CACHE", "0") != "0"
    return "Inductor's compile cache" if disabled else "vLLM's compile cache"


def _uncompiled(config: Any) -> str | None:  # noqa: ANN401 # as above
    """Why vLLM compiles no graph of this model, None if it may."""
    compilation = config.compilation_config
    mode = getattr(compilation.mode, "name", str(compilation.mode))
    if config.model_config.enforce_eager:
        return "enforce_eager is on, so vLLM compiles nothing; start it without --enforce-eager"
    if mode in _NO_GRAPHS:
        names = ", ".join(config.model_config.architectures)
        return (
            f"vLLM runs {names} with compilation mode {mode}, so it compiles nothing; start it with "
            "mode 3, if the model can be compiled at all"
        )
    if compilation.backend not in ("", "inductor"):
        return f"vLLM compiles with the backend {compilation.backend!r}, and only Inductor calls passes"
    return None
