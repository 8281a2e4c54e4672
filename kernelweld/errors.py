"""Every error and warning a user can meet, in one place.

An error says three things: what happened, where in the user's own source, and how to proceed. Fields are
typed, so a caller can act on them; the text is made when it is read. Names the user typed wrong come back
with close matches.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

_LISTED = 16  # names shown in full before the rest is only counted


@dataclass(eq=False)
class KernelweldError(Exception):
    """Base of all errors that kernelweld raises on purpose.

    ``source`` is the place in the user's source, as ``file:line`` with or without the line's text;
    ``excerpt`` is text to show under the first line (printed IR, a pipeline with a caret).
    """

    source: str = field(default="", kw_only=True)
    excerpt: str = field(default="", kw_only=True)

    @property
    def what(self) -> str:
        """What happened, in one line without a full stop."""
        return "kernelweld failed"

    @property
    def remedy(self) -> str:
        """How to proceed, in one sentence."""
        return "Run the function without kernelweld and report this error."

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"    {line}" for line in self.excerpt.splitlines()]
        if self.source:
            lines.append(f"  at {self.source}")
        return "\n".join([*lines, f"  how to proceed: {self.remedy}"])


@dataclass(eq=False)
class UnknownName(KernelweldError):
    """A pass, pattern, target or option that does not exist. ``kind`` says which of them."""

    kind: str
    name: str
    known: Sequence[str]

    @property
    def what(self) -> str:
        close = difflib.get_close_matches(self.name, self.known, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
        return f"unknown {self.kind} {self.name!r}{hint}"

    @property
    def remedy(self) -> str:
        if not self.known:
            return f"There is no {self.kind} to choose."
        rest = len(self.known[_LISTED:])
        return f"Use one of: {', '.join(self.known[:_LISTED])}{f' and {rest} more' if rest else ''}."


@dataclass(eq=False)
class BadOffer(KernelweldError):
    """What another distribution offers and cannot be used. ``value`` is its ``module:Class``."""

    kind: str
    name: str
    value: str
    reason: str

    @property
    def what(self) -> str:
        return f"{self.kind} {self.name!r} ({self.value}) cannot be used: {self.reason}"

    @property
    def remedy(self) -> str:
        return "Repair or uninstall the package that offers it."


@dataclass(eq=False)
class BadPipeline(KernelweldError):
    """Pipeline text that does not parse. ``position`` counts characters from 0 and gets the caret."""

    text: str
    position: int
    reason: str

    def __post_init__(self) -> None:
        self.excerpt = f"{self.text}\n{' ' * self.position}^"

    @property
    def what(self) -> str:
        return f"cannot read the pipeline: {self.reason} at character {self.position + 1}"

    @property
    def remedy(self) -> str:
        return "Write passes as 'name,name{option=value option=value},name'."


@dataclass(eq=False)
class BadTarget(KernelweldError):
    """A target that names something real that cannot be used. ``advice`` is the whole remedy."""

    target: str
    reason: str
    advice: str

    @property
    def what(self) -> str:
        return f"cannot use target {self.target!r}: {self.reason}"

    @property
    def remedy(self) -> str:
        return self.advice


@dataclass(eq=False)
class BadTrace(BadTarget):
    """A file that should be a profiler's trace and cannot be used as one."""

    @property
    def what(self) -> str:
        return f"cannot use the trace {self.target!r}: {self.reason}"


@dataclass(eq=False)
class BadCheckpoint(KernelweldError):
    """Weights that are not those of the model. ``problems`` has a line for each tensor that differs."""

    folder: str
    problems: Sequence[str]

    def __post_init__(self) -> None:
        self.excerpt = "\n".join(self.problems)

    @property
    def what(self) -> str:
        return f"the weights in {self.folder!r} are not those of the model that its config.json describes"

    @property
    def remedy(self) -> str:
        return "Fetch the checkpoint again, or use the config.json that belongs to it."


@dataclass(eq=False)
class MissingDependency(KernelweldError):
    """An optional package that is not installed. ``extra`` is the extra of kernelweld that brings it."""

    package: str
    purpose: str
    extra: str

    @property
    def what(self) -> str:
        return f"{self.purpose} needs the package {self.package!r}, which is not installed"

    @property
    def remedy(self) -> str:
        return f"pip install 'kernelweld[{self.extra}]'"


@dataclass(eq=False)
class NotAModule(KernelweldError):
    """``fuse`` was given neither a module nor a function. ``got`` is the name of its type."""

    got: str

    @property
    def what(self) -> str:
        return f"fuse() takes an nn.Module or a function, not {self.got!r}"

    @property
    def remedy(self) -> str:
        return "Pass the model itself, or decorate its forward with @kernelweld.fuse."


@dataclass(eq=False)
class NotFused(KernelweldError):
    """``report`` was given something that ``fuse`` did not return. ``got`` is the name of its type."""

    got: str

    @property
    def what(self) -> str:
        return f"there is no report: this {self.got} was not fused"

    @property
    def remedy(self) -> str:
        return "Call kernelweld.fuse on it first; a copy of a fused model is a plain model again."


@dataclass(eq=False)
class NotInterpreting(KernelweldError):
    """``purpose`` in a process where Triton compiles."""

    purpose: str = "backend='interpret'"

    @property
    def what(self) -> str:
        return f"{self.purpose} needs Triton's interpreter, and Triton was imported without it"

    @property
    def remedy(self) -> str:
        return "Set the environment variable TRITON_INTERPRET=1 before Python starts."


@dataclass(eq=False)
class NeedsGPU(KernelweldError):
    """Kernels were to be timed where none run. ``reason`` says why they do not."""

    reason: str

    @property
    def what(self) -> str:
        return f"kernels cannot be timed here: {self.reason}"

    @property
    def remedy(self) -> str:
        return (
            "Run it on a machine with a CUDA device, without TRITON_INTERPRET, or pass --dry-run for bytes "
            "and predicted launches."
        )


@dataclass(eq=False)
class BadOption(KernelweldError):
    """A value of an option that it cannot have. ``wanted`` says which it can."""

    option: str
    value: object
    wanted: str

    @property
    def what(self) -> str:
        return f"option {self.option!r} cannot be {self.value!r}"

    @property
    def remedy(self) -> str:
        return f"Give {self.wanted}."


@dataclass(eq=False)
class BadOperand(KernelweldError):
    """A tensor that a word does not take. ``got`` and ``wanted`` are its dtype, shape or place in words."""

    word: str
    operand: str
    got: str
    wanted: str

    @property
    def what(self) -> str:
        return f"{self.word} does not take {self.got} as {self.operand!r}"

    @property
    def remedy(self) -> str:
        return f"Give {self.wanted}."


@dataclass(eq=False)
class UnsupportedGraph(KernelweldError):
    """A graph that no pass can work on as a whole."""

    reason: str

    @property
    def what(self) -> str:
        return f"this graph cannot be welded: {self.reason}"

    @property
    def remedy(self) -> str:
        return "Move that operation out of the fused function, or use strict=False to run it as it is."


@dataclass(eq=False)
class InvalidGraph(KernelweldError):
    """A graph that breaks rules of the IR: a pass has left it wrong. One violation a line."""

    violations: Sequence[str]

    def __post_init__(self) -> None:
        self.excerpt = "\n".join(self.violations)

    @property
    def what(self) -> str:
        count = len(self.violations)
        return f"the graph breaks {count} rule{'' if count == 1 else 's'} of the IR"

    @property
    def remedy(self) -> str:
        return "Run the pipeline with verify-each to find the pass that left it so, and report that pass."


@dataclass(eq=False)
class TrainingMode(KernelweldError):
    """The model was called with gradients enabled; welds have no backward."""

    @property
    def what(self) -> str:
        return "the model was called with gradients enabled, and welds have no backward"

    @property
    def remedy(self) -> str:
        return "Call it under torch.no_grad() or torch.inference_mode()."


@dataclass(eq=False)
class GraphBreak(KernelweldError):
    """Dynamo split the function into several graphs, so no weld can cross the splits. One reason a line."""

    reasons: Sequence[str]

    def __post_init__(self) -> None:
        self.excerpt = "\n".join(self.reasons)

    @property
    def what(self) -> str:
        count = len(self.reasons)
        return f"the function has {count} graph break{'' if count == 1 else 's'}; no weld crosses one"

    @property
    def remedy(self) -> str:
        return "Remove them (TORCH_LOGS=graph_breaks shows each), or use strict=False to weld between them."


@dataclass(eq=False)
class PassFailed(KernelweldError):
    """A pass raised. The graph is as it was before the pass. ``node`` is the node it worked on, if known."""

    pass_name: str
    reason: str
    node: str = ""

    @property
    def what(self) -> str:
        place = f" at node {self.node!r}" if self.node else ""
        return f"pass {self.pass_name!r} failed{place}: {self.reason}"

    @property
    def remedy(self) -> str:
        return f"Leave {self.pass_name!r} out of the pipeline, and report this error with the source line."


@dataclass(eq=False)
class VerificationFailed(KernelweldError):
    """A weld's result is further from the exact one than its contract allows. Errors are absolute."""

    weld: str
    error: float
    allowed: float

    @property
    def what(self) -> str:
        return f"weld {self.weld!r} is wrong: error {self.error:.3g}, allowed {self.allowed:.3g}"

    @property
    def remedy(self) -> str:
        return "Do not use this weld: run without kernelweld, and report the weld with the source line."


@dataclass(eq=False)
class CodegenFailed(KernelweldError):
    """No kernel could be generated or compiled for a weld."""

    weld: str
    reason: str

    @property
    def what(self) -> str:
        return f"no kernel for weld {self.weld!r}: {self.reason}"

    @property
    def remedy(self) -> str:
        return "Use strict=False to run these operations unfused, and report this error."


class KernelweldWarning(UserWarning):
    """Something was left as it was: one line with the cause and the remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    @classmethod
    def of(cls, error: KernelweldError) -> KernelweldWarning:
        """The warning for an error that was not raised because ``strict`` is off."""
        place = f" ({' '.join(error.source.split())})" if error.source else ""
        return cls(f"{error.what}{place}", error.remedy)

    def __str__(self) -> str:
        return " ".join(f"kernelweld: {self.cause}. {self.remedy}".split())
