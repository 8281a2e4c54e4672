"""What a user may choose for ``fuse``, checked before anything is compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelweld.errors import BadOption, KernelweldError, UnknownName
from kernelweld.passes.editing import before_lower, lower_of, lowered_by
from kernelweld.passes.pipeline import DEFAULT, Pipeline
from kernelweld.passes.table import load

#: Names a pipeline that this process runs in place of its own: ``kernelweld bisect`` sets it.
VARIABLE = "KERNELWELD_PIPELINE"

BACKENDS = ("auto", "interpret", "eager")
OWN = ("pipeline", "merge_gemms", "tuned")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_WANTED = {
    "pipeline": "a text such as 'canonicalize,raise,plan,lower'",
    "merge_gemms": "True or False",
    "tuned": "True or False",
    "dynamic": "True, False or None",
    "options": "a mapping such as {'merge_gemms': False}",
}

Option = bool | int | float | str


@dataclass(frozen=True)
class Settings:
    """The arguments of ``fuse``.

    ``pipeline`` is the textual pipeline; ``merge_gemms`` packs sibling linear layers before tracing;
    ``tuned`` launches kernels as ``kernelweld bench --tune`` found best on this GPU;
    every other option goes to Inductor.
    """

    mode: str | None = None
    dynamic: bool | None = None
    verify: bool = False
    explain: bool = False
    strict: bool = False
    backend: str = "auto"
    pipeline: str = DEFAULT
    merge_gemms: bool = True
    tuned: bool = False
    inductor: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, given, types in (
            ("pipeline", self.pipeline, (str,)),
            ("merge_gemms", self.merge_gemms, (bool,)),
            ("tuned", self.tuned, (bool,)),
            ("dynamic", self.dynamic, (bool, type(None))),
        ):
            if not isinstance(given, types):
                raise BadOption(option, given, _WANTED[option])
        for kind, value, known in (
            ("backend", self.backend, BACKENDS),
            ("mode", self.mode or "default", MODES),
        ):
            if value not in known:
                raise UnknownName(kind, value, known)
        Pipeline.from_text(self.pipeline)

    @property
    def text(self) -> str:
        """The pipeline as it is run: with verification before lowering if asked for, and kernels when
        interpreting.
        """
        passes = Pipeline.from_text(self.pipeline).passes
        if self.verify:
            passes = before_lower(passes, load("verify-welds")())
        if self.backend == "interpret":
            passes = lowered_by(passes, load("lower")(target="triton"))  # type: ignore[call-arg]
        return str(Pipeline(passes))


def chosen_pipeline(own: str) -> str:
    """``own``, or what ``KERNELWELD_PIPELINE`` says in its place; a ``lower`` without options there is
    that of ``own``.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return own
    try:
        passes = Pipeline.from_text(text).passes
    except KernelweldError as error:
        error.source = f"the environment variable {VARIABLE}"
        raise
    return str(Pipeline(lowered_by(passes, lower_of(Pipeline.from_text(own).passes))))


def settings_from(options: Mapping[str, Option] | None, **given: bool | str | None) -> Settings:
    """Settings from the arguments of ``fuse``, with the pipeline of the environment if it names one. Options
    that are not kernelweld's are checked against Inductor's.
    """
    if options is not None and not isinstance(options, Mapping):
        raise BadOption("options", options, _WANTED["options"])
    options = dict(options or {})
    own = {name: options.pop(name) for name in OWN if name in options}
    known = _inductor_options()
    for name in options:
        if name not in known:
            raise UnknownName("option", name, [*OWN, *known])
    settings = Settings(**given, **own, inductor=options)  # type: ignore[arg-type]
    return replace(settings, pipeline=chosen_pipeline(settings.pipeline))


def _inductor_options() -> list[str]:
    import torch._inductor

    names: list[str] = torch._inductor.list_options()
    return names
