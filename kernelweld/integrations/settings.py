"""What a user may choose for ``fuse``, checked before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelweld.errors import BadOption, UnknownName
from kernelweld.passes.pipeline import DEFAULT, Pipeline

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
        text = self.pipeline
        if self.verify:
            text = text.replace(",lower", ",verify-welds,lower")
        return (
            text.replace(",lower", ",lower{target=triton}")
            if self.backend == "interpret" and "lower{" not in text
            else text
        )


def settings_from(options: Mapping[str, Option] | None, **given: bool | str | None) -> Settings:
    """Settings from the arguments of ``fuse``; options that are not kernelweld's are checked against
    Inductor's.
    """
    if options is not None and not isinstance(options, Mapping):
        raise BadOption("options", options, _WANTED["options"])
    options = dict(options or {})
    own = {name: options.pop(name) for name in OWN if name in options}
    known = _inductor_options()
    for name in options:
        if name not in known:
            raise UnknownName("option", name, [*OWN, *known])
    return Settings(**given, **own, inductor=options)  # type: ignore[arg-type]


def _inductor_options() -> list[str]:
    import torch._inductor

    names: list[str] = torch._inductor.list_options()
    return names
