"""A fused callable: the untouched one, its compiled form, and what was learned while compiling."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch._dynamo
from torch import fx, nn
from torch._dynamo.utils import counters
from torch.fx.experimental import _config as symbolic_config

from kernelweld.errors import GraphBreak, KernelweldError, KernelweldWarning, TrainingMode
from kernelweld.integrations.backends import Backend, backend_for
from kernelweld.integrations.settings import Settings
from kernelweld.ir.report import GraphReport, Report
from kernelweld.passes.merge_gemms import MergeOnFirstCall

Call = Callable[..., object]


@dataclass
class Fused:
    """Calls ``compiled`` where that is possible, and ``plain``, untouched, where it is not."""

    plain: Call
    settings: Settings
    module: nn.Module | None = None
    reports: list[GraphReport] = field(default_factory=list)
    compiled: Call = field(init=False)
    merge: MergeOnFirstCall | None = field(init=False)
    _warned: set[str] = field(default_factory=set)
    _breaks: int = -1

    def __post_init__(self) -> None:
        backend = backend_for(self.settings)
        self.compiled = torch.compile(
            self.plain, backend=self._recorded(backend), dynamic=self.settings.dynamic
        )
        merges = self.settings.merge_gemms and self.module is not None
        self.merge = MergeOnFirstCall(self.module) if merges and self.module is not None else None

    @property
    def report(self) -> Report:
        """What was done to every graph compiled so far."""
        return Report(tuple(self.reports))

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._needs_gradients(args):
            self._complain(TrainingMode())
            return self.plain(*args, **kwargs)
        if self.merge is not None:
            self.merge(args, kwargs)
        before = sum(counters["graph_break"].values())
        result = self._run(args, kwargs)
        if sum(counters["graph_break"].values()) > before:
            self._complain(GraphBreak([reason.splitlines()[0] for reason in counters["graph_break"]]))
        return result

    def _run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not self.settings.dynamic:
            return self.compiled(*args, **kwargs)
        # Otherwise Dynamo turns eps and scales into graph inputs, and compiles a batch of one by itself.
        with (
            torch._dynamo.config.patch(specialize_float=True),
            symbolic_config.patch(backed_size_oblivious=True),  # type: ignore[attr-defined]
        ):
            return self.compiled(*args, **kwargs)

    def _needs_gradients(self, args: tuple[object, ...]) -> bool:
        if not torch.is_grad_enabled():
            return False
        parameters = self.module.parameters() if self.module is not None else ()
        tensors = (arg for arg in args if isinstance(arg, torch.Tensor))
        return any(t.requires_grad for t in (*tensors, *parameters))

    def _complain(self, error: KernelweldError) -> None:
        """Raises if strict; otherwise warns, once for each kind of error."""
        if self.settings.strict:
            raise error
        if type(error).__name__ not in self._warned:
            self._warned.add(type(error).__name__)
            warnings.warn(KernelweldWarning.of(error), stacklevel=4)

    def _recorded(self, backend: Backend) -> Callable[[fx.GraphModule, Sequence[object]], Call]:
        def kernelweld(gm: fx.GraphModule, inputs: Sequence[object]) -> Call:
            compiled, reports = backend(gm, inputs)
            self.reports.extend(reports)
            if self.settings.explain:
                from kernelweld.integrations.explain import explain

                explain(reports)
            return compiled

        return kernelweld
