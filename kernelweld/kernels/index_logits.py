"""``index_logits``: a stand-in of the operator, in plain torch only."""

from __future__ import annotations

import torch

from kernelweld.kernels.operator import define


def _keys(cache: torch.Tensor, width: int) -> torch.Tensor:
    if cache.dtype != torch.uint8:
        return cache.float()
    pages, block, _ = cache.shape
    flat = cache.reshape(pages, -1)
    codes = flat[:, : block * width].view(torch.float8_e4m3fn).reshape(pages, block, width)
    scales = flat[:, block * width :].view(torch.float32)
    return codes.float() * scales[..., None]


def reference(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    *,
    block: int,
) -> torch.Tensor:
    """``[T, P * block]``: sum over heads of weight * relu(q . k); -inf beyond the length."""
    keys = _keys(cache, q.shape[2])[table.long()].flatten(1, 2)
    products = torch.matmul(q.float(), keys.transpose(1, 2)).relu()
    logits = torch.matmul(weights[:, None, :], products)[:, 0]
    places = torch.arange(logits.shape[1], device=logits.device)
    return torch.where(places < lengths[:, None], logits, -torch.inf)


def kernel(*_: object, **__: object) -> torch.Tensor:
    """Not here yet."""
    raise NotImplementedError


index_logits = define(
    "index_logits(Tensor q, Tensor weights, Tensor cache, Tensor lengths, Tensor table, *, int block)"
    " -> Tensor",
    reference,
    kernel,
)
