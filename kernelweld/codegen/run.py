"""Launching a generated kernel directly, on a GPU or in the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from kernelweld.codegen.cache import load
from kernelweld.codegen.emit import Kernel
from kernelweld.codegen.interpreter import exact_casts


def programs(kernel: Kernel, symbols: Mapping[str, int]) -> int:
    """The number of programs for given sizes. ``symbols`` has every symbol of the grid by name."""
    return int(kernel.grid.subs({symbol: symbols[symbol.name] for symbol in kernel.grid.free_symbols}))


def launch_direct(kernel: Kernel, tensors: Mapping[str, torch.Tensor], symbols: Mapping[str, int]) -> None:
    """Runs ``kernel`` on ``tensors`` (by argument name, outputs included) with the sizes ``symbols``.

    Nothing is allocated and nothing is checked; an empty grid launches nothing.
    """
    grid = programs(kernel, symbols)
    if grid == 0:
        return
    arguments = [*(tensors[name] for name in kernel.tensors), *(symbols[name] for name in kernel.symbols)]
    with exact_casts(), np.errstate(all="ignore"):
        load(kernel)[(grid,)](*arguments)
