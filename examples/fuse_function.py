"""Fuse one function with the decorator, and check every kernel in Triton's interpreter.

    python examples/fuse_function.py

Runs on any machine: the generated Triton is interpreted, and each weld is compared with a float64 run of the
operations it replaces before it is used.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

import torch

import kernelweld


@kernelweld.fuse(backend="interpret", verify=True, strict=True)
def add_norm_gate(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A residual add, an RMSNorm and a SiLU gate, as a model would write them. All ``[rows, width]``."""
    hidden = x + residual
    wide = hidden.float()
    normed = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    return torch.nn.functional.silu(normed) * up, hidden


def main() -> kernelweld.Report:
    """Runs the function once, prints the report and returns it."""
    torch.manual_seed(0)
    x, residual, up = (torch.randn(4, 96, dtype=torch.bfloat16) for _ in range(3))
    weight = torch.rand(96, dtype=torch.bfloat16)
    gated, _ = add_norm_gate(x, residual, weight, up)
    print("mean:", float(gated.float().mean()))
    report = kernelweld.report(add_norm_gate)
    print(report)
    return report


if __name__ == "__main__":
    main()
