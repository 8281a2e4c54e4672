"""Run a model once on fake tensors and note what every linear reads."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kernelweld.passes.merge_gemms.caches import drop_fakes

_EXTRA_COLUMNS = 8
_OWN_NAMESPACES = frozenset({"aten", "prim", "prims"})


@dataclass(frozen=True)
class InputKey:
    """Identity of the rows that a linear reads: equal keys mean equal values.

    Contiguous inputs are compared as `[rows, width]`, for a linear does not see how rows are numbered.
    """

    storage: int
    offset: int
    layout: tuple[int, ...]
    dtype: torch.dtype
    version: int  # in-place writes count it up


@dataclass
class Recording:
    """Calls of linears in order, and by path what speaks against merging one."""

    calls: list[tuple[str, InputKey]] = field(default_factory=list)
    objections: dict[str, str] = field(default_factory=dict)


def record(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> Recording:
    """Run a deep copy of the model, its parameters and arguments fake, and give what its linears did.

    The copy takes the branches that it takes when compiled. Raises whatever the model raises on fake tensors,
    for example where control flow depends on data.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.inference_mode(False), torch.no_grad():
        with _FakeCopy(fake):
            twin, twin_args, twin_kwargs = copy.deepcopy((model, tuple(args), dict(kwargs)))
        twin.__dict__.pop("forward", None)  # a compiled forward on the instance leads back to the real model
        watch = _Watch(twin)
        with _as_compiled(fake), fake, watch:
            results = tree_leaves(twin(*twin_args, **twin_kwargs))
            watch.object_to(results, "its result leaves the model as it is")
    return watch.recording


@contextmanager
def _as_compiled(fake: FakeTensorMode) -> Iterator[None]:
    """Let `torch.compiler.is_compiling()` say yes, keep failing operators silent, leave no fake behind."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    compiling, disabled = torch.compiler._is_compiling_flag, log.disabled
    torch.compiler._is_compiling_flag = log.disabled = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, log.disabled = compiling, disabled
        drop_fakes(fake)


class _FakeCopy(FakeCopyMode):
    """Copies of inference tensors are ordinary ones: they count versions and may be written in place."""

    def __torch_function__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> FakeTensor:
        result = super().__torch_function__(func, types, args, kwargs)
        plain = cast(object, result)  # it may be anything, despite its type
        inference = isinstance(plain, FakeTensor) and plain.is_inference()
        return cast(FakeTensor, result.clone()) if inference else result


class _Watch(TorchFunctionMode):
    """Hooks on the linears of a throw-away model, and a look at every torch function between them.

    A merged linear returns columns of a wider result. To learn who cannot live with that, each linear here
    already returns such columns; what then demands contiguous memory becomes an objection against that
    linear.
    """

    def __init__(self, twin: nn.Module) -> None:
        super().__init__()
        self.recording = Recording()
        self._weights: dict[int, str] = {}  # id of a parameter, to the path of its linear
        self._columns: dict[int, str] = {}  # storage of a result, to the path of its linear
        self._alive: list[torch.Tensor] = []  # else the addresses of storages would be used again
        self._depth = 0  # of calls of linears
        for path, module in twin.named_modules():
            if isinstance(module, nn.Linear):
                self._weights.update((id(parameter), path) for parameter in module.parameters(recurse=False))
                module.register_forward_pre_hook(self._before(path), with_kwargs=True)
                module.register_forward_hook(self._after(path))

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        operands = list(_tensors((*args, *kwargs.values())))
        if _is_foreign(func):
            self.object_to(operands, f"its result goes to {func}, which may need it contiguous")
        result = self._call(func, args, kwargs)
        if self._depth == 0 and _has_data(result):
            for path in filter(None, (self._weights.get(id(operand)) for operand in operands)):
                reason = f"its weight is also read outside of it, by {_name(func)}"
                self.recording.objections.setdefault(path, reason)
        return result

    def object_to(self, values: Iterable[object], reason: str) -> None:
        """Note `reason` against the linears whose own results, or views of them, are among `values`."""
        for value in values:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                path = self._columns.get(value.untyped_storage()._cdata)
                if path is not None:
                    self.recording.objections.setdefault(path, reason)

    def _call(
        self, func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        try:
            return func(*args, **kwargs)
        except (RuntimeError, ValueError):
            if _name(func) != "view":
                raise
            self.object_to(args[:1], "its result is viewed in a way that only contiguous memory allows")
            reshape: Callable[..., object] = torch.Tensor.reshape
            return reshape(*args, **kwargs)

    def _before(self, path: str) -> Callable[[nn.Module, tuple[object, ...], dict[str, object]], None]:
        def hook(_module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            self._depth += 1
            rows = args[0] if args else kwargs.get("input")
            if isinstance(rows, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    self._alive.append(rows)
                    self.recording.calls.append((path, _key(rows)))

        return hook

    def _after(self, path: str) -> Callable[[nn.Module, object, object], torch.Tensor | None]:
        def hook(module: nn.Module, _args: object, result: object) -> torch.Tensor | None:
            self._depth -= 1
            if type(module) is not nn.Linear or not isinstance(result, torch.Tensor):
                return None
            with torch._C.DisableTorchFunction():
                wide = result.new_empty(*result.shape[:-1], result.shape[-1] + _EXTRA_COLUMNS)
                self._alive.append(wide)
                self._columns[wide.untyped_storage()._cdata] = path
                return wide.narrow(-1, 0, result.shape[-1])

        return hook


def _key(rows: torch.Tensor) -> InputKey:
    contiguous = rows.is_contiguous() and rows.dim() > 0
    layout = (rows.numel(), rows.shape[-1]) if contiguous else (*rows.shape, *rows.stride())
    storage = rows.untyped_storage()._cdata
    return InputKey(storage, int(rows.storage_offset()), layout, rows.dtype, rows._version)


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _has_data(result: object) -> bool:
    """Whether a function gave tensors, rather than a shape, dtype or the like."""
    return isinstance(result, torch.Tensor | list | tuple) and not isinstance(result, torch.Size)


def _is_foreign(func: object) -> bool:
    if isinstance(func, OpOverload):
        return func.namespace not in _OWN_NAMESPACES
    return isinstance(func, OpOverloadPacket) and str(func).split(".")[0] not in _OWN_NAMESPACES


def _name(func: object) -> str:
    return str(getattr(func, "__name__", func))
