"""The feed-forward layers: a gated MLP, and experts that a router chooses for each token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from kernelweld.models.config import Config
from kernelweld.models.linear import linear
from kernelweld.models.parallel import Parallel

_torch_grouped_mm = F.grouped_mm if hasattr(F, "grouped_mm") else torch._grouped_mm


def _grouped_mm(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """``x [R, K]``, each row times the weight ``[N, K]`` of its expert, ``chosen [R]`` in ascending order.

    Tracers know torch's grouped product in bfloat16 only (2.11 and 2.13). Other dtypes, in which models are
    checked and not served, compute the products with all experts.
    """
    if x.dtype == torch.bfloat16:
        all_experts = torch.arange(weights.shape[0], device=x.device)
        ends = torch.searchsorted(chosen, all_experts, right=True).int()
        return _torch_grouped_mm(x, weights.transpose(1, 2), offs=ends)
    return torch.matmul(x, weights.transpose(1, 2))[chosen, torch.arange(len(chosen), device=x.device)]


class MLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``; a rank holds a slice of the inner width and returns its addend."""

    def __init__(self, config: Config, inner: int, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        inner = parallel.share(inner, "the inner width of an MLP")
        self.gate_proj = linear(config, config.hidden_size, inner, dtype)
        self.up_proj = linear(config, config.hidden_size, inner, dtype)
        self.down_proj = linear(config, inner, config.hidden_size, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [T, hidden]``; the same shape and dtype out."""
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Router(nn.Module):
    """Chooses experts by sigmoid scores and a bias, from the groups whose two best are best together."""

    e_score_correction_bias: torch.Tensor

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.n_routed_experts, config.hidden_size, dtype=dtype))
        self.register_buffer(
            "e_score_correction_bias", torch.zeros(config.n_routed_experts, dtype=torch.float32)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights ``[T, k]`` float32 and experts ``[T, k]`` int64 of ``x [T, hidden]``."""
        config = self.config
        scores = F.linear(x.float(), self.weight.float()).sigmoid()
        choice = scores + self.e_score_correction_bias
        grouped = choice.view(-1, config.n_group, config.n_routed_experts // config.n_group)
        groups = grouped.topk(2, dim=-1)[0].sum(-1).topk(config.topk_group, dim=-1, sorted=False)[1]
        kept = torch.zeros_like(grouped[..., 0]).scatter(1, groups, 1).unsqueeze(-1)
        choice = choice.masked_fill(kept.expand_as(grouped).flatten(1) == 0, float("-inf"))
        experts = choice.topk(config.num_experts_per_tok, dim=-1, sorted=False)[1]
        weights = scores.gather(1, experts)
        if config.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * config.routed_scaling_factor, experts


class Experts(nn.Module):
    """The routed experts as two grouped products; a rank holds a slice of each expert's inner width.

    The weights are of the model's dtype in fp8 checkpoints too: torch has no grouped product of blocks of
    codes.
    """

    def __init__(self, config: Config, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        inner = parallel.share(config.moe_intermediate_size, "the inner width of an expert")
        experts, hidden = config.n_routed_experts, config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner, dtype=dtype))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """``x [T, hidden]``, ``weights`` and ``experts [T, k]``; the weighted sum ``[T, hidden]``."""
        tokens, k = experts.shape
        chosen, order = experts.flatten().sort(stable=True)
        gate, up = _grouped_mm(x[order // k], self.gate_up_proj, chosen).chunk(2, -1)
        out = _grouped_mm(F.silu(gate) * up, self.down_proj, chosen)
        # Back in the tokens' order by a gather: a scatter would add in any order.
        out = out[order.argsort()].view(tokens, k, -1)
        return (out * weights.unsqueeze(-1)).sum(1).to(x.dtype)


class MoE(nn.Module):
    """Routed experts and one that all tokens share; a rank returns its addend."""

    def __init__(self, config: Config, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        self.gate = Router(config, dtype)
        self.experts = Experts(config, dtype, parallel)
        shared = config.moe_intermediate_size * config.n_shared_experts
        self.shared_experts = MLP(config, shared, dtype, parallel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [T, hidden]``; the same shape and dtype out."""
        out: torch.Tensor = self.experts(x, *self.gate(x)) + self.shared_experts(x)
        return out
