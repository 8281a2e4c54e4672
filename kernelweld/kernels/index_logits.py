"""``index_logits``: how much each token of a context matters to a query, by a lightning indexer's heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import check_dtype, check_shape
from kernelweld.kernels.backends import of_index_logits
from kernelweld.kernels.operator import define

_NAME = "index_logits"
_SCALE_BYTES = 4
_HEADS = 64  # heads of one tensor-core product; more are a loop


def reference(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    *,
    block: int,
) -> torch.Tensor:
    """The sum over heads of ``weights * relu(q · key) * scale``, for every token before ``lengths``.

    Shapes: ``q [T, H, D]`` in e4m3 (codes; their scales are in the weights), bfloat16 or float32; ``weights
    [T, H]`` float32; ``table [T, P]`` int32, the pages of each token's request; ``lengths [T]`` int32, how
    many tokens each one attends to. ``cache`` is ``[pages, block, D]`` in bfloat16 or float32, or the bytes
    ``[pages, block, D + 4]`` of pages that hold ``block`` rows of D e4m3 codes and then ``block`` float32
    scales. Out float32 ``[T, P * block]``, -inf from each row's length on. Page numbers beyond the length
    are not used.

    Accumulated in float32. A NaN of a key or of a query is a NaN of the logit. Raises BadOperand for other
    dtypes and shapes. Source: the lightning indexer of DeepSeek-V3.2.
    """
    _check(q, weights, cache, lengths, table, block)
    position = torch.arange(table.shape[1] * block, device=q.device)
    inside = position < lengths[:, None]
    keys, scales = _unpacked(cache, q.shape[2])
    pages = torch.where(inside[:, ::block], table, 0).long()
    products = torch.einsum("thd,tpbd->thpb", q.float(), keys[pages].float())
    summed = torch.einsum("thpb,th->tpb", products.relu(), weights)
    if scales is not None:
        summed = summed * scales[pages]
    return summed.flatten(1).masked_fill(~inside, -torch.inf)


def _unpacked(cache: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Views of a cache: its keys ``[pages, block, D]``, and its scales ``[pages, block]`` if it is packed."""
    if cache.dtype != torch.uint8:
        return cache, None
    pages, block, _ = cache.shape
    flat = cache.as_strided((pages, block * (width + _SCALE_BYTES)), (cache.stride(0), 1))
    codes, scales = flat[:, : block * width], flat[:, block * width :]
    return codes.view(torch.float8_e4m3fn).unflatten(1, (block, width)), scales.view(torch.float32)


def _check(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    block: int,
) -> None:
    """Raises BadOperand for tensors that the operation does not take."""
    check_dtype(_NAME, "q", q, (torch.float8_e4m3fn, torch.bfloat16, torch.float32))
    check_dtype(_NAME, "weights", weights, (torch.float32,))
    check_dtype(_NAME, "cache", cache, (torch.uint8, torch.bfloat16, torch.float32))
    for name, x in (("lengths", lengths), ("table", table)):
        check_dtype(_NAME, name, x, (torch.int32,))
    check_shape(_NAME, "q", q, ("T", "H", "D"))
    tokens, heads, width = q.shape
    packed = cache.dtype == torch.uint8
    check_shape(_NAME, "weights", weights, (tokens, heads))
    check_shape(_NAME, "lengths", lengths, (tokens,))
    check_shape(_NAME, "table", table, (tokens, "P"))
    check_shape(_NAME, "cache", cache, ("pages", block, width + _SCALE_BYTES if packed else width))
    if packed and (cache.stride()[1:] != (width + _SCALE_BYTES, 1) or width % 4 or cache.stride(0) % 4):
        wanted = "pages of contiguous bytes, with D and the page's stride multiples of 4"
        raise BadOperand(_NAME, "cache", f"strides {cache.stride()}", wanted)


@triton.jit  # type: ignore[untyped-decorator]
def _over_heads(
    q: tl.tensor,  # one token's, [H, D]
    weights: tl.tensor,  # [H]
    key: tl.tensor,  # [TILE, WIDTH]
    q_strides: tl.tuple,
    weight_stride: tl.tensor,
    heads: tl.constexpr,
    width: tl.constexpr,
    dot: tl.constexpr,
    HEADS: tl.constexpr,
) -> tl.tensor:
    """``[TILE]``: keys times queries ``[WIDTH, HEADS]``, each head weighted where above zero."""
    total = tl.zeros([key.shape[0]], tl.float32)
    d = tl.arange(0, key.shape[1])
    for first in tl.static_range(0, heads, HEADS):
        h = first + tl.arange(0, HEADS)
        at = q + h[None, :] * q_strides[1] + d[:, None] * q_strides[2]
        query = tl.load(at, (h < heads)[None, :] & (d < width)[:, None], 0.0).to(dot)
        weight = tl.load(weights + h * weight_stride, h < heads, 0.0)
        product = tl.dot(key, query, input_precision="tf32x3")
        product = tl.maximum(product, 0.0, propagate_nan=tl.PropagateNan.ALL)
        total += tl.sum(product * weight[None, :], 1)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _index_logits(
    q: tl.tensor,  # [T, H, D]
    weights: tl.tensor,  # [T, H]
    keys: tl.tensor,  # [pages, block, D]
    scales: tl.tensor,  # [pages, block] where packed
    lengths: tl.tensor,  # [T]
    table: tl.tensor,  # [T, P]
    out: tl.tensor,  # [T, columns]
    columns: tl.tensor,
    tiles: tl.tensor,
    q_strides: tl.tuple,
    weight_strides: tl.tuple,
    length_stride: tl.tensor,
    table_strides: tl.tuple,
    sizes: tl.constexpr,  # H, D, block
    key_strides: tl.constexpr,
    scale_page: tl.constexpr,  # 0 where not packed
    dot: tl.constexpr,
    TILE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """The logits of one token in ``TILE`` columns."""
    token = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles) * TILE
    column = first + tl.arange(0, TILE)
    length = tl.load(lengths + token * length_stride)
    result = tl.full([TILE], float("-inf"), tl.float32)
    if first < length:
        inside = (column < length) & (column < columns)
        at = table + token * table_strides[0] + column // sizes[2] * table_strides[1]
        page, row, d = tl.load(at, inside, 0).to(tl.int64), column % sizes[2], tl.arange(0, WIDTH)
        place = page * key_strides[0] + row * key_strides[1]
        mask = inside[:, None] & (d < sizes[1])[None, :]
        key = tl.load(keys + place[:, None] + d[None, :] * key_strides[2], mask, 0.0).to(dot)
        own, weight = q + token * q_strides[0], weights + token * weight_strides[0]
        total = _over_heads(own, weight, key, q_strides, weight_strides[1], sizes[0], sizes[1], dot, HEADS)
        if scale_page > 0:
            total *= tl.load(scales + page * scale_page + row, inside, 0.0)
        result = tl.where(inside, total, float("-inf"))
    tl.store(out + token * columns + column, result, column < columns)


def kernel(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    *,
    block: int,
    tile: int | None = None,
    warps: int = 4,
    dot: tl.dtype | None = None,
) -> torch.Tensor:
    """``reference`` on a GPU, in one launch.

    Programs of ``tile`` columns, by the shapes if not given; products of type ``dot``, by the dtypes.
    """
    _check(q, weights, cache, lengths, table, block)
    tokens, heads, width = q.shape
    columns = table.shape[1] * block
    out = torch.empty(tokens, columns, dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out
    keys, scales = _unpacked(cache, width)
    tile = tile or _tile(tokens, columns, width * keys.itemsize)
    tiles = triton.cdiv(columns, tile)
    _index_logits[(tokens * tiles,)](
        *(q, weights, keys, keys if scales is None else scales, lengths, table, out),
        *(columns, tiles, q.stride(), weights.stride(), lengths.stride(0), table.stride()),
        sizes=(heads, width, block),
        key_strides=keys.stride(),
        scale_page=0 if scales is None else scales.stride(0),
        dot=dot or _dot(q.dtype, keys.dtype),
        TILE=tile,
        HEADS=min(_HEADS, max(16, triton.next_power_of_2(heads))),
        WIDTH=max(32, triton.next_power_of_2(width)),
        num_warps=warps,
    )
    return out


def _dot(q: torch.dtype, keys: torch.dtype) -> tl.dtype:
    """The type that both factors have exactly."""
    if q == keys == torch.float8_e4m3fn:
        return tl.float8e4nv
    return tl.float32 if torch.float32 in (q, keys) else tl.bfloat16


def _tile(tokens: int, columns: int, row_bytes: int) -> int:
    """Columns of a program: more where there are programs enough, fewer where rows are wide."""
    wide = tokens * columns >= 1 << 16 and row_bytes <= 256
    return 128 if wide else 64 if row_bytes <= 512 else 32


def _on_gpu(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    *,
    block: int,
) -> torch.Tensor:
    """``kernel``, or the same by a library that is installed."""
    _check(q, weights, cache, lengths, table, block)
    other = of_index_logits(q, weights, cache, lengths, table).call
    if other is not None and q.shape[0] > 0:
        return other(q, weights, cache, lengths, table)
    return kernel(q, weights, cache, lengths, table, block=block)


index_logits = define(
    "index_logits(Tensor q, Tensor weights, Tensor cache, Tensor lengths, Tensor table, *, int block)"
    " -> Tensor",
    reference,
    _on_gpu,
)
