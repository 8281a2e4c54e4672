"""What a pass is: a frozen dataclass of options with a name, run on a graph that stays runnable after it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from torch import fx

from kernelweld.ir.report import NearMiss, WeldReport

if TYPE_CHECKING:
    from kernelweld.codegen.tuning import Tuning
    from kernelweld.passes.weld import WeldPlan


@dataclasses.dataclass
class PassContext:
    """What passes of one pipeline run hand on to each other: near misses so far and the plan. A new one for
    each graph. ``tuning`` comes from whoever runs the pipeline. ``left_out`` are names and ids of the welds
    that were dropped on request. ``operators`` are calls of kernelweld's own operators that took the place of
    words, described as welds are.
    """

    near_misses: list[NearMiss] = dataclasses.field(default_factory=list)
    plan: WeldPlan | None = None
    tuning: Tuning | None = None
    left_out: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    operators: list[WeldReport] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class PassResult:
    """``modified``: the graph changed; ``count``: matches, merges or welds, whatever the pass counts."""

    modified: bool
    count: int = 0


@dataclasses.dataclass(frozen=True)
class Pass(ABC):
    """One rewriting step. The fields are its options; ``run`` may change ``gm.graph`` and leaves it
    runnable and equal in meaning.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("__abstract__", False) and not hasattr(cls, "name"):
            raise TypeError(f"pass {cls.__name__} must define `name`")

    @abstractmethod
    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        """Applies the pass."""
