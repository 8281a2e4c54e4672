"""``fuse`` and ``report``: the decorator and the question what it did."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar, overload

import torch
from torch import nn

from kernelweld.codegen.interpreter import interpreting
from kernelweld.errors import NotAModule, NotFused, NotInterpreting
from kernelweld.integrations.fused import Fused
from kernelweld.integrations.settings import Option, settings_from
from kernelweld.ir.report import Report

T = TypeVar("T", bound=Callable[..., object])

_ATTRIBUTE = "kernelweld_fused"


@overload
def fuse(
    model: T,
    *,
    mode: str | None = None,
    dynamic: bool | None = None,
    verify: bool = False,
    explain: bool = False,
    strict: bool = False,
    backend: str = "auto",
    options: Mapping[str, Option] | None = None,
) -> T: ...


@overload
def fuse(
    model: None = None,
    *,
    mode: str | None = None,
    dynamic: bool | None = None,
    verify: bool = False,
    explain: bool = False,
    strict: bool = False,
    backend: str = "auto",
    options: Mapping[str, Option] | None = None,
) -> Callable[[T], T]: ...


def fuse(
    model: T | None = None,
    *,
    mode: str | None = None,
    dynamic: bool | None = None,
    verify: bool = False,
    explain: bool = False,
    strict: bool = False,
    backend: str = "auto",
    options: Mapping[str, Option] | None = None,
) -> T | Callable[[T], T]:
    """Compiles a model or a function with its norm, rotary, gate and residual chains welded into kernels.

    A module is fused in place and returned, so methods of its class that call it (``generate``) use the
    compiled forward. A function, or a method decorated with ``@kernelweld.fuse``, is returned wrapped.
    Compilation happens at the first call.

    Args:
        model: An ``nn.Module`` or a function; left out when used as ``@kernelweld.fuse(...)``.
        mode: As in ``torch.compile``: ``"reduce-overhead"`` captures CUDA graphs.
        dynamic: As in ``torch.compile``.
        verify: Checks every weld against the nodes it replaces on drawn inputs, and drops those that break
            the numerics contract.
        explain: Prints each graph's report as it is compiled, to standard error.
        strict: Raises typed errors where kernelweld would warn and leave the model as it was.
        backend: ``"auto"``: kernels on CUDA, references compiled by Inductor elsewhere. ``"interpret"``: the
            generated Triton through Triton's interpreter, on any machine (needs ``TRITON_INTERPRET=1``).
            ``"eager"``: as ``"auto"`` without Inductor, op by op.
        options: ``pipeline`` (text), ``merge_gemms`` (bool), ``tuned`` (bool), and any option of Inductor.

    Raises:
        NotAModule: ``model`` is neither a module nor a function.
        UnknownName, BadPipeline, BadOption: an argument is not one of those that exist.
        NotInterpreting: ``backend="interpret"``, or ``verify`` where there is no GPU, without
            ``TRITON_INTERPRET=1``.
    """
    settings = settings_from(
        options, mode=mode, dynamic=dynamic, verify=verify, explain=explain, strict=strict, backend=backend
    )
    if verify and not (interpreting() or torch.cuda.is_available()):
        raise NotInterpreting("verify=True without a GPU")
    if model is None:
        return lambda given: fuse(
            given,
            mode=mode,
            dynamic=dynamic,
            verify=verify,
            explain=explain,
            strict=strict,
            backend=backend,
            options=options,
        )
    if isinstance(model, nn.Module):
        fused = Fused(model._call_impl, settings, model)
        model._compiled_call_impl = fused
        return model
    if isinstance(model, type) or not callable(model):
        raise NotAModule(type(model).__name__)
    return _wrap(model, Fused(model, settings))


def _wrap(function: T, fused: Fused) -> T:
    """A plain function, so that a decorated method still binds to its instance."""

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return fused(*args, **kwargs)

    setattr(wrapper, _ATTRIBUTE, fused)
    return wrapper  # type: ignore[return-value]


def report(model: Callable[..., object]) -> Report:
    """What was welded, what was not and why, for every graph of a fused model that was compiled so far.

    Raises:
        NotFused: ``model`` is not what ``fuse`` returned.
    """
    fused = (
        getattr(model, "_compiled_call_impl", None)
        if isinstance(model, nn.Module)
        else getattr(model, _ATTRIBUTE, None)
    )
    if not isinstance(fused, Fused):
        raise NotFused(type(model).__name__)
    return fused.report
