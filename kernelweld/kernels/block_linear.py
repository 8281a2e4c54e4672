"""``block_linear``: a linear layer of e4m3 codes, with a scale for each block of 128 by 128 of the weight
and for each 128 values of a token (DeepSeek-V3, arXiv 2412.19437, section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernelweld.ir.operands import check_dtype, check_shape
from kernelweld.kernels.operator import define

BLOCK = 128
_CODES = (torch.float8_e4m3fn,)
_OUT = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True)
class Tiling:
    """Rows and columns of a program, and Triton's warps and stages."""

    rows: int
    columns: int
    warps: int
    stages: int


def reference(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``[M, N]`` of ``dtype``: both sides scaled by their blocks of 128, accumulated in float32.

    ``codes [M, K]`` and ``weight [N, K]`` e4m3, ``scales [M, ceil(K / 128)]`` and ``weight_scales [ceil(N /
    128), ceil(K / 128)]`` float32, all of any strides.

    Raises:
        BadOperand: a tensor has another dtype or shape.
    """
    _check(codes, scales, weight, weight_scales)
    n, k = weight.shape
    x = codes.float() * scales.repeat_interleave(BLOCK, 1)[:, :k]
    w = weight.float() * weight_scales.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return (x @ w.T).to(dtype)


def _check(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> None:
    name = "block_linear"
    check_shape(name, "weight", weight, ("N", "K"))
    check_shape(name, "codes", codes, ("M", "K"))
    n, k = weight.shape
    for operand, x, dtypes in (
        ("codes", codes, _CODES),
        ("weight", weight, _CODES),
        ("scales", scales, (torch.float32,)),
        ("weight_scales", weight_scales, (torch.float32,)),
    ):
        check_dtype(name, operand, x, dtypes)
    check_shape(name, "codes", codes, (codes.shape[0], k))
    check_shape(name, "scales", scales, (codes.shape[0], -(-k // BLOCK)))
    check_shape(name, "weight_scales", weight_scales, (-(-n // BLOCK), -(-k // BLOCK)))


@triton.jit  # type: ignore[untyped-decorator]
def _block_linear(
    x_ptr: tl.tensor,  # [M, K]
    x_scale_ptr: tl.tensor,  # [M, ceil(K / BLOCK)]
    w_ptr: tl.tensor,  # [N, K]
    w_scale_ptr: tl.tensor,  # [ceil(N / BLOCK), ceil(K / BLOCK)]
    out_ptr: tl.tensor,  # [M, N], dense
    rows: tl.tensor,
    columns: tl.tensor,
    depth: tl.tensor,
    tiles: tl.tensor,  # of columns
    x_stride: tl.tuple,
    x_scale_stride: tl.tuple,
    w_stride: tl.tuple,
    w_scale_stride: tl.tuple,
    out_dtype: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """ROWS by COLUMNS of the result: one block of the depth after the other, each scaled as a whole.

    Codes are exact in float16, and so are its products in float32: Hopper's own products of codes accumulate
    with fewer bits.
    """
    pid = tl.program_id(0)
    row = (pid // tiles * ROWS + tl.arange(0, ROWS)).to(tl.int64)  # [R]
    column = (pid % tiles * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)  # [N]
    lane = tl.arange(0, BLOCK)  # [128]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, BLOCK):
        k = (start + lane).to(tl.int64)
        x_mask = (row < rows)[:, None] & (k < depth)[None, :]
        w_mask = (column < columns)[:, None] & (k < depth)[None, :]
        x = tl.load(x_ptr + row[:, None] * x_stride[0] + k[None, :] * x_stride[1], mask=x_mask, other=0.0)
        w_at = w_ptr + column[:, None] * w_stride[0] + k[None, :] * w_stride[1]
        w = tl.load(w_at, mask=w_mask, other=0.0)
        x_scale_at = x_scale_ptr + row * x_scale_stride[0] + start // BLOCK * x_scale_stride[1]
        w_scale_at = w_scale_ptr + column // BLOCK * w_scale_stride[0] + start // BLOCK * w_scale_stride[1]
        x_scale = tl.load(x_scale_at, mask=row < rows, other=0.0)
        w_scale = tl.load(w_scale_at, mask=column < columns, other=0.0)
        product = tl.dot(x.to(tl.float16), tl.trans(w.to(tl.float16)))
        total += product * x_scale[:, None] * w_scale[None, :]
    out = out_ptr + row[:, None] * columns + column[None, :]
    tl.store(out, total.to(out_dtype), mask=(row < rows)[:, None] & (column < columns)[None, :])


def _tiling(rows: int, columns: int) -> Tiling:
    """Few columns a program while a weight must be streamed by all multiprocessors, square tiles else. The
    sums of an element are the same in all.
    """
    if rows <= 16:
        return Tiling(16, 16 if columns < 8192 else 32, 4, 4)
    if rows <= 64:
        return Tiling(triton.next_power_of_2(rows), 32, 4, 4)
    return Tiling(128, 128, 8, 3)


def kernel(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    dtype: torch.dtype,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """``reference`` on a GPU, in one launch; ``tiling`` by the shapes if not given."""
    _check(codes, scales, weight, weight_scales)
    (rows, depth), columns = codes.shape, weight.shape[0]
    out = torch.empty(rows, columns, dtype=dtype, device=codes.device)
    if out.numel() == 0:
        return out
    cut = tiling or _tiling(rows, columns)
    tiles = triton.cdiv(columns, cut.columns)
    _block_linear[(triton.cdiv(rows, cut.rows) * tiles,)](
        *(codes, scales, weight, weight_scales, out, rows, columns, depth, tiles),
        *(codes.stride(), scales.stride(), weight.stride(), weight_scales.stride()),
        out_dtype=_OUT[dtype],
        ROWS=cut.rows,
        COLUMNS=cut.columns,
        BLOCK=BLOCK,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out


def _on_gpu(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    return kernel(codes, scales, weight, weight_scales, dtype=dtype)


block_linear = define(
    "block_linear(Tensor codes, Tensor scales, Tensor weight, Tensor weight_scales, *, ScalarType dtype)"
    " -> Tensor",
    reference,
    _on_gpu,
)
