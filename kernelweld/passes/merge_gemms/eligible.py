"""Which linears may be packed. Every refusal is a sentence that a report can print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from kernelweld.passes.merge_gemms import storage
from kernelweld.passes.merge_gemms.linear import PackedLinear, bias_of

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def why_not_linear(module: nn.Module) -> str | None:
    """Why this module is not simply `F.linear` of parameters that may move; None when it is."""
    if type(module) not in (nn.Linear, PackedLinear):
        return f"is a {type(module).__qualname__}, not exactly nn.Linear"
    if "forward" in module.__dict__:
        return "has a forward of its own on the instance"
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return "has hooks"
    if "weight" not in module._parameters:
        return "has a weight that is no parameter"
    reason = storage.why_not_packable(module._parameters["weight"])
    if reason is not None:
        return f"weight {reason}"
    bias = module._parameters.get("bias")
    reason = None if bias is None else storage.why_not_packable(bias)
    return None if reason is None else f"bias {reason}"


def why_not_together(linears: Sequence[nn.Linear]) -> str | None:
    """Why these linears cannot share one weight; None when they can."""
    for linear in linears:
        reason = why_not_linear(linear)
        if reason is not None:
            return reason
    if len({kind(linear) for linear in linears}) > 1:
        return "in_features, dtype, device or the presence of a bias differ"
    return None


def kind(linear: nn.Linear) -> tuple[int, torch.dtype, torch.device, torch.dtype | None]:
    """What linears must have in common: in_features, dtype, device, and bias."""
    bias = bias_of(linear)
    return linear.in_features, linear.weight.dtype, linear.weight.device, None if bias is None else bias.dtype


def tied_parameters(model: nn.Module) -> dict[int, str]:
    """Parameters (by id) that the model holds under several names, with these names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {key: " = ".join(same) for key, same in names.items() if len(same) > 1}


def why_tied(linear: nn.Module, tied: Mapping[int, str]) -> str | None:
    """Says so when a parameter of the linear is one of the `tied_parameters` of the model."""
    for parameter in linear.parameters(recurse=False):
        if id(parameter) in tied:
            return f"shares a parameter: {tied[id(parameter)]}"
    return None
