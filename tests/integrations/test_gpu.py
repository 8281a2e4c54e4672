"""``fuse`` on a real GPU, through Inductor: dynamic batch with verified welds, the compile cache, users' own
``generate``.

Run with ``TRITON_INTERPRET=0``; the other tests of this folder interpret.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelweld
from kernelweld.cli.targets import resolve
from kernelweld.codegen.interpreter import interpreting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0"),
]

TARGETS = ("deepseek_v32", "minimax_m2", "qwen3_5_moe", "qwen3_next", "qwen3_5")
BATCHES = (4, 7, 256, 1, 33)
WIDTH = 256


class Block(nn.Module):
    """Residual add, RMSNorm, gate between two projections."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.rand(WIDTH))
        self.up = nn.Linear(WIDTH, 96, bias=False)
        self.gate = nn.Linear(WIDTH, 96, bias=False)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        h = x + residual
        n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return nn.functional.silu(self.gate(n)) * self.up(n)


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    x, residual = torch.randn(2, rows, WIDTH, device="cuda").unbind()
    return x, residual


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [True, None])
def test_one_compilation_serves_many_batches(dynamic: bool | None) -> None:
    block = Block().cuda()
    plain = copy.deepcopy(block)
    fused = kernelweld.fuse(block, dynamic=dynamic, verify=True, strict=True)
    with torch.no_grad():
        for rows in BATCHES:
            torch.testing.assert_close(fused(*inputs(rows)), plain(*inputs(rows)), rtol=1e-4, atol=1e-5)
    graphs = kernelweld.report(fused).graphs
    assert all(graph.welds for graph in graphs)
    assert len(graphs) <= (1 if dynamic else 3)


SECOND_PROCESS = """
import json, sys, torch
sys.path.insert(0, {tests!r})
import kernelweld
from test_gpu import Block, inputs
block = kernelweld.fuse(Block().cuda(), strict=True)
with torch.no_grad():
    out = block(*inputs(5))
from torch._dynamo.utils import counters
print(json.dumps([json.loads(kernelweld.report(block).to_json()), out.double().sum().item(),
    counters["aot_autograd"]["autograd_cache_hit"]]))
"""


def test_a_second_process_hits_the_cache_with_the_same_report(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "KERNELWELD_CACHE_DIR": str(tmp_path / "kernelweld"),
    }
    command = [sys.executable, "-c", SECOND_PROCESS.format(tests=str(Path(__file__).parent))]
    outputs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    first, second = (json.loads(text.splitlines()[-1]) for text in outputs)
    assert first[:2] == second[:2]
    assert first[0]["graphs"][0]["welds"]
    assert (first[2], second[2]) == (0, 1), "the second process must be a cache hit"


@pytest.mark.hf
@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("target", TARGETS)
def test_generate_gives_the_same_tokens(target: str, cache: str) -> None:
    model = resolve(f"hf:{target}", dtype=torch.float32).fn
    assert isinstance(model, nn.Module)
    model.cuda()
    expected = _greedy(copy.deepcopy(model), cache)
    tokens = _greedy(kernelweld.fuse(model, strict=True), cache)
    assert torch.equal(tokens, expected)
    assert all(graph.welds for graph in kernelweld.report(model).graphs)


def _greedy(model: nn.Module, cache: str) -> torch.Tensor:
    torch.manual_seed(3)
    ids = torch.randint(3, 100, (2, 9), device="cuda")
    with torch.no_grad():
        return model.generate(  # type: ignore[operator, no-any-return]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation=cache,
        )
