"""Running one weld's kernel directly, beside its original nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.codegen.launch import Launch
from kernelweld.codegen.tuning import Tuning
from kernelweld.passes.verification.contract import ErrorReport, compare
from kernelweld.passes.verification.specimen import Specimen, specimen
from kernelweld.passes.weld import Weld


@dataclass(frozen=True)
class WeldCheck:
    """The errors of one weld on one draw of inputs."""

    name: str
    errors: tuple[ErrorReport, ...]

    @property
    def holds(self) -> bool:
        return all(error.holds for error in self.errors)


def check_weld(weld: Weld, seed: int = 0, tuning: Tuning | None = None) -> WeldCheck:
    """Draws inputs for ``weld``, runs its kernel and its original nodes, and judges every output.

    ``tuning``: launches to use in place of the default ones, as ``lower`` does.

    Needs a GPU for CUDA graphs, or Triton's interpreter for CPU graphs. The weld's steps must still stand
    in their graph.
    """
    one = specimen(weld)
    return check_specimen(one, seed, None if tuning is None else tuning.launch_of(one.program))


def check_specimen(
    one: Specimen, seed: int = 0, launch: Launch | None = None, device: torch.device | str | None = None
) -> WeldCheck:
    """The same for a weld that was taken out of its graph, on ``device`` or where it was traced."""
    draw = one.draw(seed, device)
    original = one.originals(draw)
    one.launch(draw, launch)
    return WeldCheck(one.name, tuple(map(compare, one.results, one.outputs(draw), original, one.truth(draw))))
