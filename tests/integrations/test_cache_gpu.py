"""Caches written on a real GPU, through Inductor: in place, in one launch, nothing but the slots.

Run with ``TRITON_INTERPRET=0``; the other tests of this folder interpret.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import kernelweld
from kernelweld.codegen.interpreter import interpreting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0"),
]

Tensor = torch.Tensor
bf16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
HEADS, KV_HEADS, D, BLOCK = 16, 2, 128, 16


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos[:, None] + torch.cat((-x[..., half:], x[..., :half]), -1) * sin[:, None]


def attention(write: Callable[[Tensor, Tensor, Tensor], None], fp8: bool) -> Callable[..., Tensor]:
    scale = torch.tensor(0.02, device="cuda")

    def codes(x: Tensor) -> Tensor:
        return (x.float() / scale).clamp(-448.0, 448.0).to(E4M3) if fp8 else x

    def chain(
        k_cache: Tensor,
        v_cache: Tensor,
        qkv: Tensor,
        weights: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
    ) -> Tensor:
        q, k, v = (p.unflatten(-1, (-1, D)) for p in qkv.split([HEADS * D, KV_HEADS * D, KV_HEADS * D], -1))
        q, k = rope(norm(q, weights[0]), cos, sin), rope(norm(k, weights[1]), cos, sin)
        write(k_cache, codes(k), slots)
        write(v_cache, codes(v), slots)
        return q

    return chain


def by_slot(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache.view(-1, KV_HEADS, D)[slots] = rows


def by_block(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, slots % BLOCK] = rows


def heads_first(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, :, slots % BLOCK] = rows


def inputs(tokens: int, shape: tuple[int, ...], fp8: bool) -> list[Tensor]:
    torch.manual_seed(0)
    caches = [torch.randn(shape, device="cuda").to(E4M3 if fp8 else bf16) for _ in range(2)]
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * D, device="cuda").to(bf16)
    weights = torch.rand(2, D, device="cuda").to(bf16)
    cos, sin = torch.randn(2, tokens, D, device="cuda").to(bf16)
    slots = torch.randperm(shape[0] * BLOCK, device="cuda")[:tokens]
    return [*caches, qkv, weights, cos, sin, slots]


def kernels(call: Callable[[], object]) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    return [e.name for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]


def flat(x: Tensor) -> Tensor:
    return x.view(torch.uint8).flatten()


@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize(
    ("write", "shape", "fp8"),
    [
        (by_slot, (64, BLOCK, KV_HEADS, D), False),
        (by_slot, (64, BLOCK, KV_HEADS, D), True),
        (heads_first, (64, KV_HEADS, BLOCK, D), False),
    ],
    ids=["NHD", "NHD fp8", "HND"],
)
def test_one_kernel_writes_both_caches_in_place(
    write: Callable[[Tensor, Tensor, Tensor], None], shape: tuple[int, ...], fp8: bool, tokens: int
) -> None:
    chain, given = attention(write, fp8), inputs(tokens, shape, fp8)
    fused = kernelweld.fuse(chain, dynamic=False)
    with torch.no_grad():
        fused(*[x.clone() for x in given])
        mine, expected = [x.clone() for x in given], [x.clone() for x in given]
        launched = kernels(lambda: fused(*mine))
        chain(*expected)
    assert len(launched) == 1, launched
    for before, after, wanted in zip(given[:2], mine[:2], expected[:2], strict=True):
        untouched = flat(before) == flat(wanted)
        assert torch.equal(flat(after)[untouched], flat(before)[untouched]) or fp8
        torch.testing.assert_close(after.float(), wanted.float(), rtol=0.13 if fp8 else 0.02, atol=0.02)
        rows = (flat(before) != flat(after)).nonzero().flatten() // before.element_size()
        at = rows // D % BLOCK if shape[1] == KV_HEADS else rows // (KV_HEADS * D) % BLOCK
        touched = set((rows // (BLOCK * KV_HEADS * D) * BLOCK + at).tolist())
        assert touched <= set(given[-1].tolist())


@pytest.mark.parametrize("dim", [0, 1], ids=["stacked", "by block"])
def test_keys_and_values_of_one_tensor_are_written_in_place_and_read(dim: int) -> None:
    """The reader comes behind the kernel, and the cache is not copied for it."""
    shape = (2, 1 << 14, BLOCK, KV_HEADS, D)
    rotate_and_write = attention(by_block, False)

    def chain(kv: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = kv.unbind(dim)
        q = rotate_and_write(keys, values, *rest)
        return q, kv.flatten(0, -2)[:64] @ q.flatten(0, 1).T

    _, _, *rest = inputs(33, (64, BLOCK, KV_HEADS, D), False)
    kv = torch.randn(shape, device="cuda").to(bf16)
    kv = kv if dim == 0 else kv.transpose(0, 1).contiguous()
    fused = kernelweld.fuse(chain, dynamic=False)
    with torch.no_grad():
        fused(kv.clone(), *rest)
        mine, expected = kv.clone(), kv.clone()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fused(mine, *rest)
        assert torch.cuda.max_memory_allocated() - before < kv.nbytes // 4
        chain(expected, *rest)
    torch.testing.assert_close(mine.float(), expected.float(), rtol=0.02, atol=0.02)
    assert torch.equal((mine != kv).flatten(-2).any(-1), (expected != kv).flatten(-2).any(-1))


@pytest.mark.parametrize("negative", ["nowhere", "end"])
def test_slots_beyond_two_gigabytes(negative: str) -> None:
    """The last slots of 4.3 GB of cache, padding between them; everything else stays zero."""
    slots_in_all = 1 << 23
    cache = torch.zeros(slots_in_all // BLOCK, BLOCK, KV_HEADS, D, device="cuda", dtype=bf16)
    slots = torch.tensor([slots_in_all - 1, -1, slots_in_all - 2, 5, -1], device="cuda")
    slots = slots if negative == "nowhere" else torch.tensor([-1, -2, -3, 5, 6], device="cuda")
    rows, weight = (
        torch.randn(5, KV_HEADS, D, device="cuda").to(bf16),
        torch.ones(D, device="cuda", dtype=bf16),
    )

    def chain(cache: Tensor, rows: Tensor, weight: Tensor, slots: Tensor) -> None:
        write = torch.ops.kernelweld.cache_write
        value = norm(rows, weight)
        cache.copy_(write(cache, value, slots, None, None, dims=[0, 1], place=0, negative=negative))

    fused = kernelweld.fuse(chain, dynamic=False)
    with torch.no_grad():
        before = torch.cuda.max_memory_allocated()
        fused(cache, rows, weight, slots)
        assert torch.cuda.max_memory_allocated() - before < 1 << 30  # no copy of the cache
    written = cache.view(-1, KV_HEADS * D).abs().amax(-1).nonzero().flatten().tolist()
    kept = [s % slots_in_all for s in slots.tolist() if negative == "end" or s >= 0]
    assert written == sorted(kept)
    for slot, row in zip(slots.tolist(), norm(rows, weight), strict=True):
        if negative == "end" or slot >= 0:
            torch.testing.assert_close(cache.view(-1, KV_HEADS, D)[slot], row, rtol=0.02, atol=0.02)
