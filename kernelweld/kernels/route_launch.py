"""Launching the kernels of ``route``: their shapes, and the workspace in which partial sums meet."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernelweld.kernels.route_configs import Config, config_for
from kernelweld.kernels.route_kernels import choose_kernel, route_kernel

if TYPE_CHECKING:
    from kernelweld.kernels.route import Routed, Rule

_TL = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

#: Partial sums of one launch, and launches that may be under way at the same time.
SLOT, SLOTS = 1 << 19, 8
_turn = count()
_WORKSPACES: dict[torch.device, torch.Tensor] = {}


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rule: Rule) -> Routed:
    """Weights and ids for ``x``, by one launch for few rows and by two for more."""
    (rows, width), experts = x.shape, weight.shape[0]
    if rows == 0:
        return _outputs(x, rule)
    config = config_for(rows, width, experts, weight.dtype)
    if config is None:
        return choose(logits_of(x, weight), bias, rule)
    return in_one(x, weight, bias, rule, config)


def in_one(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rule: Rule, config: Config
) -> Routed:
    """GEMM and choice in one launch, which is as ``config`` says."""
    (rows, width), experts = x.shape, weight.shape[0]
    weights, ids = _outputs(x, rule)
    tiles, splits = config.tiles(experts), config.splits(width)
    block_m = max(triton.next_power_of_2(rows), 16 if config.dot else 1)
    even = experts % config.block_e == 0 and width == splits * config.block_k * config.steps
    route_kernel[(tiles * splits + min(rows, config.waiting),)](
        x,
        weight,
        bias,
        weights,
        ids,
        next_workspace(x.device, splits * rows * experts),
        rows,
        *x.stride(),
        *weight.stride(),
        0 if bias is None else bias.stride(0),
        rule.scale,
        width,
        experts,
        *_constants(rule, bias, experts, config.warps),
        block_m,
        config.block_e,
        config.block_k,
        config.steps,
        tiles,
        splits,
        even,
        config.dot,
        num_warps=config.warps,
    )
    return weights, ids


def choose(logits: torch.Tensor, bias: torch.Tensor | None, rule: Rule) -> Routed:
    """The choice for contiguous float32 logits [M, E]."""
    weights, ids = _outputs(logits, rule)
    experts = logits.shape[1]
    stride = 0 if bias is None else bias.stride(0)
    choose_kernel[(logits.shape[0],)](
        *(logits, bias, weights, ids, stride, rule.scale, experts),
        *_constants(rule, bias, experts, warps=1),
        num_warps=1,
    )
    return weights, ids


def logits_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T`` by the library, accumulated and kept in float32."""
    if x.is_cuda and x.dtype == weight.dtype == torch.bfloat16:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return F.linear(x.float(), weight.float())


def _constants(rule: Rule, bias: torch.Tensor | None, experts: int, warps: int) -> tuple[object, ...]:
    """The parameters from ``K`` to ``PADDED_SIZE`` of both kernels.

    Without fewer values than threads, no two threads look for the same partial sum and see different ones.
    """
    groups = rule.groups if rule.top_groups < rule.groups else 1
    padded = triton.next_power_of_2(groups)
    size = max(triton.next_power_of_2(experts // groups), 32 * warps // padded)
    return (
        *(rule.k, triton.next_power_of_2(rule.k), groups, min(rule.top_groups, groups)),
        *(rule.scoring == "sigmoid", bias is not None, rule.renormalise),
        *(_TL[rule.logits or torch.float32], padded, size),
    )


def _outputs(x: torch.Tensor, rule: Rule) -> Routed:
    """Empty weights and ids."""
    shape = (x.shape[0], rule.k)
    return x.new_empty(shape, dtype=torch.float32), x.new_empty(shape, dtype=torch.int64)


def next_workspace(device: torch.device, size: int) -> torch.Tensor:
    """``size`` partial sums, all absent. Launches take turns with ``SLOTS`` places, as they may overlap on
    several streams; more than that may not, nor may CUDA graphs with routers be replayed at the same time.
    """
    if size > SLOT:
        return torch.full((size,), -1, dtype=torch.int32, device=device)
    if device not in _WORKSPACES and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.full((SLOT,), -1, dtype=torch.int32, device=device)  # the graph's own, filled in it
    return workspace(device)[next(_turn) % SLOTS]


def workspace(device: torch.device) -> torch.Tensor:
    """The device's workspace. Made before a graph is captured, it does not become part of the graph."""
    if device not in _WORKSPACES:
        _WORKSPACES[device] = torch.full((SLOTS, SLOT), -1, dtype=torch.int32, device=device)
    return _WORKSPACES[device]
