"""Defining an operator: schema, reference, and the kernel that CUDA tensors go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from kernelweld.ir.word import Tensors

#: The namespace's owner is the vocabulary; operators of this room are added to it.
_LIBRARY = torch.library.Library("kernelweld", "FRAGMENT")


@dataclass(frozen=True)
class Operator:
    """An operator of ``torch.ops.kernelweld``.

    ``reference`` computes it in plain torch, on any device; it also gives tracers the shapes, unless
    ``shapes`` does. ``kernel`` computes it on CUDA tensors with the same result.
    """

    overload: OpOverload
    reference: Callable[..., Tensors]
    kernel: Callable[..., Tensors]

    def __call__(self, *args: object, **kwargs: object) -> Tensors:
        result: Tensors = self.overload(*args, **kwargs)
        return result


def define(
    schema: str,
    reference: Callable[..., Tensors],
    kernel: Callable[..., Tensors],
    shapes: Callable[..., Tensors] | None = None,
) -> Operator:
    """Defines ``kernelweld::<schema>``, once in a process.

    ``kernel`` may import Triton when it is first called, so that machines without a GPU need not have it.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"kernelweld::{name}", shapes or reference, lib=_LIBRARY)
    return Operator(getattr(torch.ops.kernelweld, name).default, reference, kernel)
