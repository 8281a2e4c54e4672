"""``sparse_mla``: multi-head latent attention over the slots of a cache that were selected for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import check_dtype, check_shape
from kernelweld.kernels.arrivals import arrivals
from kernelweld.kernels.backends import of_sparse_mla
from kernelweld.kernels.operator import define
from kernelweld.kernels.sparse_mla_triton import sparse_mla_kernel

_NAME = "sparse_mla"
_GROUP = 128  # codes of one scale in the packed cache
_PACKED = 656  # its bytes a row: 512 codes, 4 float32 scales, 64 bfloat16 of rope
_LATENT, _ROPE = 512, 64
_PROGRAMS = 128  # about one for each multiprocessor of an H200
_FLOATS = (torch.bfloat16, torch.float32)


def reference(
    q: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scale_kv: torch.Tensor | None = None,
    *,
    scale: float,
    rank: int = 512,
) -> torch.Tensor:
    """Softmax attention of every head over the rows at ``slots``; values are the first ``rank`` elements.

    Shapes: ``q [T, H, rank + rope]`` bfloat16 or float32; ``slots [T, K]`` int32, -1 for nothing, anywhere in
    a row; ``cache [pages, block, width]``, slot ``s`` being row ``s % block`` of page ``s // block``. Its
    width is rank + rope in bfloat16 or float32, or in e4m3 with the scalar ``scale_kv [1]`` float32; or 656
    bytes: 512 e4m3 codes, 4 float32 scales of 128 codes each, 64 bfloat16 of rope. Out ``[T, H, rank]`` in
    q's dtype.

    ``softmax(scale * q · row) @ row[:rank]`` in float32, rounded once. A token without a slot gets zeros.
    Raises BadOperand for other dtypes and shapes. Source: DeepSeek-V2 (arXiv 2405.04434) with the weights of
    the projections absorbed, and the sparse attention of DeepSeek-V3.2.
    """
    _check(q, cache, slots, scale_kv, rank)
    chosen = slots >= 0
    slot = torch.where(chosen, slots, 0).long()
    block = cache.shape[1]
    rows = _floats(cache[slot // block, slot % block], scale_kv).masked_fill(~chosen[..., None], 0)
    scores = torch.einsum("thd,tkd->thk", q.float(), rows) * scale
    scores = scores.masked_fill(~chosen[:, None], -torch.inf)
    shares = scores.softmax(-1).masked_fill(~chosen[:, None], 0)
    return torch.einsum("thk,tkd->thd", shares, rows[..., :rank]).to(q.dtype)


def _floats(rows: torch.Tensor, scale_kv: torch.Tensor | None) -> torch.Tensor:
    """Rows of a cache in float32, ``[..., rank + rope]``."""
    if rows.dtype != torch.uint8:
        return rows.float() if scale_kv is None else rows.float() * scale_kv
    parts = _parts(rows, _LATENT)
    latent = parts.latent.float().unflatten(-1, (-1, _GROUP)) * parts.scales[..., None]
    return torch.cat([latent.flatten(-2), parts.rope.float()], -1)


@dataclass(frozen=True)
class _Parts:
    """Views of a cache: latent ``[..., rank]``, rope ``[..., rope]``, scales ``[..., 4]`` if packed."""

    latent: torch.Tensor
    rope: torch.Tensor
    scales: torch.Tensor


def _parts(cache: torch.Tensor, rank: int) -> _Parts:
    if cache.dtype != torch.uint8:
        return _Parts(cache[..., :rank], cache[..., rank:], cache)
    codes, scales, rope = cache.split([_LATENT, 4 * (_LATENT // _GROUP), 2 * _ROPE], -1)
    return _Parts(codes.view(torch.float8_e4m3fn), rope.view(torch.bfloat16), scales.view(torch.float32))


def _check(
    q: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scale_kv: torch.Tensor | None, rank: int
) -> None:
    """Raises BadOperand for tensors that the operation does not take."""
    check_dtype(_NAME, "q", q, _FLOATS)
    check_dtype(_NAME, "cache", cache, (*_FLOATS, torch.float8_e4m3fn, torch.uint8))
    check_dtype(_NAME, "slots", slots, (torch.int32,))
    check_shape(_NAME, "q", q, ("T", "H", "rank + rope"))
    check_shape(_NAME, "slots", slots, (q.shape[0], "K"))
    packed, width = cache.dtype == torch.uint8, q.shape[2]
    check_shape(_NAME, "cache", cache, ("pages", "block", _PACKED if packed else width))
    if not 0 < rank <= width or (packed and (rank, width) != (_LATENT, _LATENT + _ROPE)):
        wanted = "576 elements a head with rank 512" if packed else "at least `rank` elements a head"
        raise BadOperand(_NAME, "q", f"{width} elements a head with rank {rank}", wanted)
    if (scale_kv is not None) != (cache.dtype == torch.float8_e4m3fn):
        got = "nothing" if scale_kv is None else "a scale"
        raise BadOperand(_NAME, "scale_kv", got, "a scale with a cache in float8_e4m3fn, and with no other")
    if scale_kv is not None:
        check_dtype(_NAME, "scale_kv", scale_kv, (torch.float32,))
        check_shape(_NAME, "scale_kv", scale_kv, (1,))
    if cache.stride(2) != 1 or (packed and any(s % 4 for s in cache.stride()[:2])):
        wanted = "rows of contiguous elements, at addresses that are multiples of 4"
        raise BadOperand(_NAME, "cache", f"strides {cache.stride()}", wanted)


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: ``heads`` and ``tile`` slots at once, ``splits`` of the slots and ``parts`` of the
    value's columns in programs of their own, and Triton's warps and stages. Numbers are powers of two.
    """

    heads: int = 16
    tile: int = 64
    splits: int = 1
    parts: int = 1
    warps: int = 4
    stages: int = 2


def kernel(
    q: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scale_kv: torch.Tensor | None = None,
    *,
    scale: float,
    rank: int = 512,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """``reference`` on a GPU, in one launch.

    With few tokens the slots of each are split over programs, and the last of them to arrive combines their
    sums in the order of the splits: results do not depend on which it is, but on how many splits there are.
    Products are of bfloat16, to which keys, values and weights are rounded, unless q or the cache is float32.
    """
    _check(q, cache, slots, scale_kv, rank)
    tokens, heads, width = q.shape
    out = torch.empty(tokens, heads, rank, dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    wide = torch.float32 in (q.dtype, cache.dtype)
    columns = max(16, triton.next_power_of_2(rank))
    tiling = tiling or _tiling(tokens, heads, slots.shape[1], columns, wide)
    groups = tokens * triton.cdiv(heads, tiling.heads) * tiling.parts
    parts = _parts(cache, rank)
    views = (parts.latent, parts.rope, parts.scales)
    sparse_mla_kernel[(groups * tiling.splits,)](
        *(q, views, slots, q if scale_kv is None else scale_kv, out),
        _scratch(q.device, groups, tiling, columns // tiling.parts) if tiling.splits > 1 else (out, out, out),
        *(scale, slots.shape[1], _share(slots.shape[1], tiling), q.stride(), slots.stride()),
        sizes=(heads, rank, width - rank, cache.shape[1]),
        strides=tuple(stride for view in views for stride in view.stride()[:2]),
        kind="packed" if cache.dtype == torch.uint8 else "scaled" if scale_kv is not None else "plain",
        dot=tl.float32 if wide else tl.bfloat16,
        tiles=(tiling.tile, columns, max(16, triton.next_power_of_2(width - rank))),
        HEADS=tiling.heads,
        COLUMNS=columns // tiling.parts,
        SPLITS=tiling.splits,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def _share(count: int, tiling: Tiling) -> int:
    """How many slots a split has: whole tiles."""
    return int(triton.cdiv(triton.cdiv(count, tiling.splits), tiling.tile) * tiling.tile)


def _scratch(
    device: torch.device, groups: int, tiling: Tiling, columns: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the splits leave for the last of them, and the counters of their arrival."""
    rows = groups * tiling.splits * tiling.heads
    sums = torch.empty(rows, columns, dtype=torch.float32, device=device)
    return sums, torch.empty(rows, 2, dtype=torch.float32, device=device), arrivals(device, groups)


def _tiling(tokens: int, heads: int, count: int, columns: int, wide: bool) -> Tiling:
    """As found best on an H200: programs enough for its multiprocessors, as long as the sums that are left to
    combine are few.
    """
    block = 16 if wide else min(64, max(16, triton.next_power_of_2(heads)))
    groups = max(1, tokens * triton.cdiv(heads, block))
    splits, parts = 1, 1
    while splits < 16 and 2 * groups * splits <= _PROGRAMS and splits * 128 < count:
        splits *= 2
    while parts < 4 and columns >= 256 * parts and (wide or (2 * groups * splits * parts <= _PROGRAMS)):
        parts *= 2
    if wide:
        return Tiling(block, 32, splits, parts, 8, 1)  # in parts: float32 has few registers to spare
    return Tiling(block, 32, splits, parts, 8, 2) if block == 64 else Tiling(block, 64, splits, parts, 8, 2)


def _on_gpu(
    q: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scale_kv: torch.Tensor | None = None,
    *,
    scale: float,
    rank: int = 512,
) -> torch.Tensor:
    """``kernel``, or the same by a library that is installed."""
    _check(q, cache, slots, scale_kv, rank)
    other = of_sparse_mla(q, cache, slots, rank).call
    if other is not None and q.shape[0] > 0:
        return other(q, cache, slots, scale)
    return kernel(q, cache, slots, scale_kv, scale=scale, rank=rank)


sparse_mla = define(
    "sparse_mla(Tensor q, Tensor cache, Tensor slots, Tensor? scale_kv=None, *, float scale, int rank=512)"
    " -> Tensor",
    reference,
    _on_gpu,
)
