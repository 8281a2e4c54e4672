"""A fused callable: the untouched one, its compiled form, and what was learned while compiling."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
import torch._dynamo
from torch import fx, nn
from torch._dynamo.exc import TorchRuntimeError
from torch._dynamo.utils import counters
from torch.fx.experimental import _config as symbolic_config
from torch.utils._pytree import tree_leaves

from kernelweld.errors import GraphBreak, KernelweldError, KernelweldWarning, TrainingMode
from kernelweld.integrations.backends import Backend, backend_for
from kernelweld.integrations.settings import Settings
from kernelweld.ir.report import GraphReport, Report
from kernelweld.passes.merge_gemms import MergeOnFirstCall

Call = Callable[..., object]


def _tensors(values: object) -> Iterator[torch.Tensor]:
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, nn.Module):
            yield from value.parameters()


def _closed(function: Call) -> list[object]:
    """What a function closes over; a cell that is not filled yet holds nothing."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


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
    _serves_one: bool = True

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
        if torch.compiler.is_compiling():  # inside of another compilation, which takes the model as it is
            return self.plain(*args, **kwargs)
        if self._needs_gradients(args, kwargs):
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
        # Otherwise Dynamo turns eps and scales into graph inputs.
        with torch._dynamo.config.patch(specialize_float=True):
            if self._serves_one:
                try:
                    # Otherwise Dynamo compiles a batch of one by itself.
                    with symbolic_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
                        return self.compiled(*args, **kwargs)
                except TorchRuntimeError:  # where a dimension of one is there to be broadcast
                    self._serves_one = False
            return self.compiled(*args, **kwargs)

    def _needs_gradients(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether a tensor among the arguments, or of a module that is called or closed over, needs one."""
        if not torch.is_grad_enabled():
            return False
        reached = (self.module, args, kwargs, _closed(self.plain))
        return any(tensor.requires_grad for tensor in _tensors(reached))

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
