"""The benchmarks' chains, and the wiring of other libraries' kernels.

Each library is stood in for by plain torch that does what its documentation says, so that a wrong argument or
result shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
E4M3 = torch.float8_e4m3fn
Tensor = torch.Tensor


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[SimpleNamespace]:
    """The modules of ``benchmarks/``, which import one another by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import chains
        import kernels
        import peers
        import performance_page

        yield SimpleNamespace(chains=chains, kernels=kernels, peers=peers, page=performance_page)


# --- the stand-ins ---


def normed(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * (weight.float() + offset)).to(x.dtype)


def added(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.add_(x)
    return normed(residual, weight, eps)


def fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    x.copy_(added(x, residual, weight, eps))


def codes(x: Tensor, scale: Tensor) -> Tensor:
    return (x.float() / scale).clamp(-448, 448).to(E4M3)


def block_quant(
    out: Tensor, scales: Tensor, kept: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> None:
    assert scales.shape == (x.shape[1] // 128, -(-x.shape[0] // 4) * 4)
    assert scales.is_contiguous()
    kept.copy_(added(x, residual, weight, eps))
    groups = kept.unflatten(-1, (-1, 128)).float()
    scale = groups.abs().amax(-1).clamp(min=1e-10) / 448
    scales[:, : x.shape[0]] = scale.t()
    out.copy_(codes(groups, scale[..., None]).flatten(1))


def rope_in_place(
    positions: Tensor, q: Tensor, k: Tensor, head: int, cache: Tensor, *, is_neox: bool
) -> None:
    assert is_neox and cache.dtype == torch.float32
    cos, sin = (table[:, None] for table in cache[positions].chunk(2, -1))
    for x in (q, k):
        first, second = x.view(x.shape[0], -1, head).float().chunk(2, -1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        x.copy_(turned.flatten(1).to(x.dtype))


def liger_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """[batch, heads, tokens, D], of whose tables it reads the first halves."""
    half = cos.shape[-1] // 2
    c, s = cos[:, None, :, :half].float(), sin[:, None, :, :half].float()

    def turned(x: Tensor) -> Tensor:
        first, second = x.float().chunk(2, -1)
        return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)

    return turned(q), turned(k)


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    made.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
    return made


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer and Liger, as far as the benchmarks call them."""
    norm = SimpleNamespace(
        rmsnorm=normed,
        gemma_rmsnorm=lambda x, w, eps: normed(x, w, eps, 1.0),
        fused_add_rmsnorm=fused_add_rmsnorm,
        rmsnorm_quant=lambda out, x, w, s, eps: out.copy_(codes(normed(x, w, eps), s)),
        fused_add_rmsnorm_quant=lambda out, x, r, w, s, eps: out.copy_(codes(added(x, r, w, eps), s)),
        fused_add_rmsnorm_fp8_block_quant=block_quant,
    )
    rope = SimpleNamespace(apply_rope_with_cos_sin_cache_inplace=rope_in_place)
    activation = SimpleNamespace(silu_and_mul=silu_and_mul)
    functional = module(
        "liger_kernel.transformers.functional",
        liger_rms_norm=lambda x, w, eps, offset, casting_mode: normed(x, w, eps, offset),
        liger_fused_add_rms_norm=lambda x, r, w, eps, casting_mode: (normed(x + r, w, eps), x + r),
        liger_swiglu=lambda a, b: silu_and_mul(torch.cat((a, b), -1)),
        liger_rope=liger_rope,
    )
    made = {
        "flashinfer": module("flashinfer", norm=norm, rope=rope, activation=activation),
        "liger_kernel": module("liger_kernel"),
        "liger_kernel.transformers": module("liger_kernel.transformers"),
        functional.__name__: functional,
    }
    for name, one in made.items():
        monkeypatch.setitem(sys.modules, name, one)


# --- the tests ---

WIRED = [
    *(
        ("flashinfer", c)
        for c in ("norm 7168", "gemma norm 7168", "add + norm 7168", "norm + static fp8 7168")
    ),
    *(("flashinfer", c) for c in ("add + norm + static fp8 7168", "add + norm + group fp8 7168")),
    *(("flashinfer", c) for c in ("silu gate 2048", "rope by position 32+8x128")),
    *(("liger", c) for c in ("norm 7168", "gemma norm 7168", "add + norm 7168", "silu gate 2048 apart")),
    ("liger", "rope by table 32+8x128"),
]


def test_every_kernel_of_these_libraries_is_tried_here(benchmarks: Any) -> None:
    libraries = benchmarks.peers.LIBRARIES
    assert {(n, c) for n in ("flashinfer", "liger") for c in libraries[n].kernels} == set(WIRED)
    assert {c for library in libraries.values() for c in library.kernels} <= set(benchmarks.chains.CHAINS)


@pytest.mark.parametrize(("library", "name"), WIRED)
def test_a_kernel_is_called_as_its_library_says(
    library: str, name: str, benchmarks: Any, libraries: None
) -> None:
    torch.manual_seed(0)
    chain = benchmarks.chains.CHAINS[name]
    found, _ = benchmarks.peers.peers_of(name)
    assert (
        benchmarks.peers.disagreement(chain, found[library], chain.inputs(6)) <= benchmarks.kernels.DIFFERING
    )


def test_a_kernel_that_computes_something_else_shows(benchmarks: Any) -> None:
    torch.manual_seed(0)
    chains, peers = benchmarks.chains, benchmarks.peers
    chain = chains.CHAINS["norm 7168"]
    assert peers.disagreement(chain, chains.gemma_norm, chain.inputs(4)) > 0.9
    assert peers.disagreement(chain, lambda x, w: chains.norm(x, w)[:2], chain.inputs(4)) == 1.0
    assert peers.disagreement(chain, chains.norm, chain.inputs(4)) == 0.0


def test_libraries_that_are_not_there_are_named(
    benchmarks: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    kernels, absent = benchmarks.peers.peers_of("add + norm 7168")
    assert (kernels, absent) == ({}, ["vllm", "flashinfer", "liger"])
    assert benchmarks.peers.peers_of("group fp8 7168") == ({}, ["vllm"])
    record = {
        "us": {"kernelweld": 1.0, "inductor": 2.0, "liger": 3.0},
        "hot_us": {"kernelweld": 0.5, "inductor": 1.5, "liger": 3.0},
        "copy_fraction": 0.5,
        "absent": ["vllm", "flashinfer"],
        "differing": {"liger": 0.25},
    }
    benchmarks.kernels.print_row("add + norm 7168", 4, record)
    line = capsys.readouterr().out
    assert "vllm absent  flashinfer absent  liger differs in 25.0%" in line


def test_the_page_has_a_column_for_each_library_that_took_part(benchmarks: Any) -> None:
    us = {"kernelweld": 1.0, "inductor": 2.0, "flashinfer": 1.6, "liger": 0.5}
    record = {
        "us": us,
        "hot_us": us,
        "copy_fraction": 0.5,
        "absent": ["vllm"],
        "differing": {"liger": 0.25},
    }
    results = {"environment": {}, "copy_bytes_per_us": 4e6, "chains": {"norm 7168 @ 4": record}}
    text = benchmarks.page.chains(results)
    assert "| chain | tokens | kernelweld | Inductor | FlashInfer | Liger | of the fastest other |" in text
    assert "Not installed there: vLLM." in text
    (row,) = [line for line in text.splitlines() if line.startswith("| norm 7168")]
    assert row.split(" | ")[-2] == "0.62", "a kernel that computes something else is no yardstick"


DIRECT = (
    *("norm 7168", "gemma norm 7168", "norm + static fp8 7168", "add + norm + static fp8 7168"),
    *("silu gate 2048", "silu gate 2048 apart"),
    *("rope by position 32+8x128", "rope by table 32+8x128"),
)


@pytest.mark.parametrize("name", DIRECT)
def test_a_chain_is_one_weld_that_can_be_launched_by_itself(name: str, benchmarks: Any) -> None:
    torch.manual_seed(0)
    chain = benchmarks.chains.CHAINS[name]
    inputs = chain.inputs(3)
    benchmarks.kernels.launched(chain, inputs)(*inputs)


def test_a_weld_behind_another_kernel_is_not_launched_by_itself(benchmarks: Any) -> None:
    chain = benchmarks.chains.CHAINS["norm 7168"]
    behind = replace(chain, function=lambda x, weight: chain.function(x.sort(-1).values, weight))
    assert benchmarks.kernels.launched(behind, chain.inputs(3)) is None
