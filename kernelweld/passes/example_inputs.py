"""Random inputs for a graph, of the shapes, strides and dtypes that its placeholders record."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

Input = torch.Tensor | int | float | bool | None


def example_inputs(graph: fx.Graph, seed: int = 0, device: torch.device | str | None = None) -> list[Input]:
    """One value a placeholder, on ``device`` or where it was traced; the same ``seed`` gives the same values.

    Floating tensors are standard normal; integer tensors hold 0 and 1, which index any table of two rows.
    Symbolic sizes take the value they were traced with.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_value(node.meta["val"], generator, device) for node in graph.find_nodes(op="placeholder")]


def concrete(size: int | torch.SymInt) -> int:
    """A size as a number, without a guard: what it was traced with, or 2 if it depends on data."""
    if isinstance(size, int):
        return size
    return 2 if size.node.hint is None else int(size.node.hint)


def _value(recorded: object, generator: torch.Generator, device: torch.device | str | None) -> Input:
    if isinstance(recorded, torch.Tensor):
        return _tensor(recorded, generator, device or recorded.device)
    if isinstance(recorded, torch.SymInt):
        return concrete(recorded)
    if recorded is None or isinstance(recorded, (bool, int, float)):
        return recorded
    raise TypeError(f"no example can be made for an input of type {type(recorded).__name__}")


def _tensor(recorded: torch.Tensor, generator: torch.Generator, device: torch.device | str) -> torch.Tensor:
    """A tensor over one random buffer, so that strides of any kind are kept, overlapping ones too."""
    shape, strides = [concrete(s) for s in recorded.shape], [concrete(s) for s in recorded.stride()]
    buffer = _random(_extent(shape, strides), recorded.dtype, generator).to(device)
    return buffer.as_strided(shape, strides)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size)


def _random(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 2, (count,), generator=generator).to(dtype)
