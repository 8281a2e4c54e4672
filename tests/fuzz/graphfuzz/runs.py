"""Ways of running a graph: with what it writes, watching every value, with other roundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

#: Operators whose float32 results are exact: nothing to round differently.
EXACT = frozenset(
    {
        *(aten.neg.default, aten.abs.default, aten.relu.default, aten.cat.default, aten.clone.default),
        *(aten.maximum.default, aten.minimum.default, aten.amax.default, aten.amin.default),
        *(aten.clamp_min.default, aten.clamp_max.default, aten.where.self, aten.full.default),
        *(aten.reshape.default, aten.permute.default, aten.expand.default, aten.unsqueeze.default),
        *(aten.squeeze.dim, aten.slice.Tensor, aten.select.int, aten.flip.default, aten.copy_.default),
        torch.ops.prims.convert_element_type.default,
    }
)

#: Which dimensions of which arguments a product of matrices adds up.
SUMMED: Mapping[Any, Mapping[int, int]] = {
    aten.mm.default: {0: -1, 1: -2},
    aten.bmm.default: {0: -1, 1: -2},
    aten.addmm.default: {1: -1, 2: -2},
}


def run_all(
    run: Callable[..., Sequence[torch.Tensor]], gm: fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs of ``gm`` by ``run``, then the inputs that it writes to."""
    outputs = run(*inputs)
    written = {n.args[0] for n in gm.graph.find_nodes(op="call_function", target=aten.copy_.default)}
    places = [i for i, n in enumerate(gm.graph.find_nodes(op="placeholder")) if n in written]
    return [*outputs, *(inputs[i] for i in places)]


class Checked(fx.Interpreter):
    """Holds every value to what its node records: dtype and shape, and on request the strides that matter.

    The fake strides of a ``cat`` are not always those of the real one; a compiler goes by the fake ones.
    """

    def __init__(self, gm: fx.GraphModule, *, strides: bool) -> None:
        super().__init__(gm)
        self.wrong: list[str] = []
        self._strides = strides

    def run_node(self, n: fx.Node) -> Any:
        result, recorded = super().run_node(n), n.meta.get("val")
        if n.target is aten.cat.default:
            result = result.new_empty_strided(recorded.shape, recorded.stride()).copy_(result)
        if isinstance(result, torch.Tensor) and isinstance(recorded, torch.Tensor):
            got, wanted = self._seen(result), self._seen(recorded)
            if got != wanted:
                self.wrong.append(f"{n.format_node()}: is {got}, recorded {wanted}")
        return result

    def _seen(self, x: torch.Tensor) -> tuple[object, ...]:
        moving = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
        return x.dtype, tuple(x.shape), tuple(moving) if self._strides and x.numel() else ()


class Jittered(fx.Interpreter):
    """Adds in another order, and moves every inexact float32 result by up to one unit in the last place."""

    def __init__(self, gm: fx.GraphModule, seed: int) -> None:
        super().__init__(gm)
        self._generator = torch.Generator().manual_seed(seed)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in SUMMED:
            args = self._shuffled(args, SUMMED[target])
        result = super().call_function(target, args, kwargs)
        if target in EXACT or not isinstance(result, torch.Tensor) or result.dtype != torch.float32:
            return result
        noise = torch.rand(result.shape, generator=self._generator) * 2 - 1
        return result * (1 + noise * torch.finfo(torch.float32).eps)

    def _shuffled(self, args: tuple[Any, ...], dims: Mapping[int, int]) -> tuple[Any, ...]:
        """The arguments with one permutation along the dimension that each of ``dims`` is summed over."""
        position, dim = next(iter(dims.items()))
        order = torch.randperm(args[position].shape[dim], generator=self._generator)
        return tuple(a.index_select(dims[i], order) if i in dims else a for i, a in enumerate(args))
