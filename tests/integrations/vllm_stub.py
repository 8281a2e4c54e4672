"""As much of vLLM's module tree as kernelweld's hook touches, for tests where vLLM is not installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest
from torch._inductor.custom_graph_pass import CustomGraphPass

from kernelweld.integrations.vllm import outcome, versions, welder
from kernelweld.integrations.vllm.configured import VllmPass
from kernelweld.integrations.vllm.options import Options

PASSES, WORKERS = "vllm.compilation.passes.inductor_pass", "vllm.v1.worker.worker_base"


class InductorPass(CustomGraphPass):
    """As in ``vllm.compilation.passes.inductor_pass``: what a configured pass must be an instance of."""


@dataclass(frozen=True)
class Range:
    """A range of tokens, ends included."""

    start: int
    end: int


class Worker:
    """A platform's worker; ``compiles`` is what happens while it compiles and warms up."""

    def __init__(self, config: object, compiles: object = None) -> None:
        self.vllm_config, self.compiles = config, compiles

    def init_device(self) -> None:
        pass

    def compile_or_warm_up_model(self) -> str:
        if callable(self.compiles):
            self.compiles()
        return "compilation times"


def install(monkeypatch: pytest.MonkeyPatch, version: str | None = "0.33.0") -> SimpleNamespace:
    """Puts the modules in place, and ``version`` where that of vLLM is asked for."""
    passes, workers = ModuleType(PASSES), ModuleType(WORKERS)
    passes.InductorPass = InductorPass  # type: ignore[attr-defined]
    passes._pass_context = None  # type: ignore[attr-defined]

    class WorkerWrapperBase:
        def __init__(self, worker: Worker) -> None:
            self.worker = worker

        def init_device(self) -> None:
            self.worker.init_device()

    workers.WorkerWrapperBase = WorkerWrapperBase  # type: ignore[attr-defined]
    for name, module in ((PASSES, passes), (WORKERS, workers)):
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, name, module)
    installed(monkeypatch, version)
    return SimpleNamespace(passes=passes, workers=workers)


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Has the version of vLLM be ``version``, and nothing said of it yet."""
    monkeypatch.setattr(versions, "installed", lambda: version)
    welder._say_once.cache_clear()


@dataclass
class Compilation:
    """A compilation config with ``given`` as its pass."""

    given: object
    mode: object = field(default_factory=lambda: SimpleNamespace(name="VLLM_COMPILE"))
    backend: str = "inductor"

    @property
    def inductor_compile_config(self) -> Mapping[str, object]:
        return {} if self.given is None else {outcome.KEY: self.given}


@dataclass
class Config:
    """A ``VllmConfig``."""

    compilation_config: Compilation
    eager: bool = False
    rank: int = 0
    hash: str = "of the configuration"

    @classmethod
    def of(cls, **options: object) -> Config:
        return cls(Compilation(VllmPass(Options(**options))))  # type: ignore[arg-type]

    @property
    def model_config(self) -> SimpleNamespace:
        return SimpleNamespace(enforce_eager=self.eager, architectures=["TinyForCausalLM"], model="tiny")

    @property
    def parallel_config(self) -> SimpleNamespace:
        return SimpleNamespace(rank=self.rank)

    def compute_hash(self) -> str:
        return self.hash
