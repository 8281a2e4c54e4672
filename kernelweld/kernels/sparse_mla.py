"""``sparse_mla``: a stand-in of the operator, in plain torch only."""

from __future__ import annotations

import torch

from kernelweld.kernels.operator import define


def _rows(cache: torch.Tensor, slots: torch.Tensor, scale_kv: torch.Tensor | None) -> torch.Tensor:
    rows = cache.flatten(0, 1)[slots.clamp(min=0).long()]
    if cache.dtype != torch.uint8:
        return rows.float() if scale_kv is None else rows.float() * scale_kv
    codes = rows[..., :512].contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (4, 128))
    scales = rows[..., 512:528].contiguous().view(torch.float32)
    rope = rows[..., 528:].contiguous().view(torch.bfloat16).float()
    return torch.cat([(codes * scales[..., None]).flatten(-2), rope], -1)


def reference(
    q: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scale_kv: torch.Tensor | None = None,
    *,
    scale: float,
    rank: int = 512,
) -> torch.Tensor:
    """``[T, H, rank]``: attention over the rows of the valid slots."""
    rows = _rows(cache, slots, scale_kv)
    scores = torch.matmul(q.float(), rows.transpose(1, 2)) * scale
    valid = (slots >= 0)[:, None, :]
    weights = torch.where(valid, scores, -torch.inf).softmax(-1)
    weights = torch.where(valid, weights, 0.0)
    return torch.matmul(weights, rows[..., :rank]).to(q.dtype)


def kernel(*_: object, **__: object) -> torch.Tensor:
    """Not here yet."""
    raise NotImplementedError


sparse_mla = define(
    "sparse_mla(Tensor q, Tensor cache, Tensor slots, Tensor? scale_kv=None, *, float scale, int rank=512)"
    " -> Tensor",
    reference,
    kernel,
)
