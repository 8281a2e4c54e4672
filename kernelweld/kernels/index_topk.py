"""``index_topk``: a stand-in of the operator, in plain torch only."""

from __future__ import annotations

import torch

from kernelweld.kernels.operator import define


def reference(
    scores: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None = None, *, k: int, block: int = 0
) -> torch.Tensor:
    """The k largest of the valid columns, ascending; the lowest index wins ties, NaN counts as largest."""
    columns = scores.shape[1]
    places = torch.arange(columns, device=scores.device)
    valid = places < lengths[:, None]
    values = torch.where(scores.isnan(), torch.inf, scores) + 0.0
    values = torch.where(valid, values, -torch.inf)
    order = (scores.isnan().int() * 2 + valid.int()).mul(valid.int())
    ranks = values.sort(dim=1, descending=True, stable=True).indices
    ranks = ranks.gather(1, order.gather(1, ranks).sort(dim=1, descending=True, stable=True).indices)
    chosen = ranks[:, :k]
    chosen = torch.where(valid.gather(1, chosen), chosen, columns).sort(dim=1).values
    out = torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=columns)
    if table is None:
        return torch.where(out < columns, out, -1).int()
    slots = table.long().gather(1, out.clamp(max=max(columns - 1, 0)) // block) * block + out % block
    return torch.where(out < columns, slots, -1).int()


def kernel(*_: object, **__: object) -> torch.Tensor:
    """Not here yet."""
    raise NotImplementedError


index_topk = define(
    "index_topk(Tensor scores, Tensor lengths, Tensor? table=None, *, int k, int block=0) -> Tensor",
    reference,
    kernel,
)
