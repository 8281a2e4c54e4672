"""Compile a model so that its GEMMs can be counted after equal expressions were shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.compile_utils import fx_graph_cse
from torch._inductor.decomposition import select_decomp_table

GEMMS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})


@dataclass
class Compiled:
    """A model compiled to the ATen graph that passes see, run without code generation."""

    model: nn.Module
    dynamic: bool | None = None
    graphs: list[torch.fx.Graph] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._run = torch.compile(self.model, backend=self._backend, dynamic=self.dynamic)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    @property
    def gemms(self) -> int:
        return sum(node.target in GEMMS for node in self.graphs[-1].nodes)

    @property
    def matrices(self) -> list[tuple[int, ...]]:
        """Shapes of the two-dimensional inputs of the last graph."""
        inputs = (node.meta["val"] for node in self.graphs[-1].nodes if node.op == "placeholder")
        return [
            tuple(value.shape) for value in inputs if isinstance(value, torch.Tensor) and value.dim() == 2
        ]

    def _backend(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def share_equal(graph_module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
            graph = fx_graph_cse(graph_module.graph)
            graph.eliminate_dead_code()
            self.graphs.append(graph)
            return make_boxed_func(torch.fx.GraphModule(graph_module, graph).forward)

        return aot_module_simplified(
            module,
            inputs,
            fw_compiler=share_equal,
            decompositions=select_decomp_table(),
            keep_inference_input_mutations=True,
        )


@pytest.fixture
def compiled() -> Callable[..., Compiled]:
    torch._dynamo.reset()
    return Compiled


class Attention(nn.Module):
    """Three siblings of uneven widths and a fourth linear on another input."""

    def __init__(self, bias: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.q = nn.Linear(32, 24, bias=bias, dtype=dtype)
        self.k = nn.Linear(32, 7, bias=bias, dtype=dtype)
        self.v = nn.Linear(32, 8, bias=bias, dtype=dtype)
        self.o = nn.Linear(24, 16, dtype=dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.o(self.q(x)).sin(), self.k(x).cos(), self.v(x).tanh()


@pytest.fixture
def attention() -> Callable[..., Attention]:
    torch.manual_seed(0)
    return lambda *args, **kwargs: Attention(*args, **kwargs).eval()
