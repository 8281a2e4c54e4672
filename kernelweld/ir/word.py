"""The base of all words: static parameters, tensor operands, reference, and the operator schema
derived from them.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar, Self, get_type_hints

import torch

Tensors = torch.Tensor | tuple[torch.Tensor, ...]
Static = bool | int | float | str | torch.dtype | tuple[int, ...]

_SCHEMA_TYPES = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    torch.dtype: "ScalarType",
    tuple[int, ...]: "int[]",
}


@dataclasses.dataclass(frozen=True)
class Word(ABC):
    """One semantic operation with fixed parameters.

    Subclasses are frozen dataclasses whose fields are the parameters. ``operands`` names the tensor
    arguments in order; a name that ends in ``?`` is optional and given as ``None`` when absent.
    ``reference`` computes the word in plain torch: in float32, rounding exactly where the fields say.
    """

    kind: ClassVar[str]
    operands: ClassVar[tuple[str, ...]]
    results: ClassVar[int] = 1
    #: Whether a row task can hold the word: its results at a row depend on that row of the operands.
    is_row: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("kind", "operands"):
            if not hasattr(cls, name):
                raise TypeError(f"word {cls.__name__} must define `{name}`")

    @abstractmethod
    def reference(self, *tensors: torch.Tensor | None) -> Tensors:
        """The word in plain torch."""

    def check(self, *tensors: torch.Tensor | None) -> None:  # noqa: B027 (most words take what comes)
        """Raises :class:`~kernelweld.errors.BadOperand` for tensors that the word does not take."""

    @classmethod
    def schema(cls) -> str:
        """The torch.library schema: operands first, then the fields as keyword-only arguments."""
        operands = [
            f"Tensor? {name[:-1]}=None" if name.endswith("?") else f"Tensor {name}" for name in cls.operands
        ]
        types = get_type_hints(cls)
        fields = [f"{_schema_type(cls, f.name, types[f.name])} {f.name}" for f in dataclasses.fields(cls)]
        result = "Tensor" if cls.results == 1 else f"({', '.join(['Tensor'] * cls.results)})"
        arguments = ", ".join([*operands, *(["*", *fields] if fields else [])])
        return f"{cls.kind}({arguments}) -> {result}"

    @classmethod
    def from_static(cls, static: dict[str, Static]) -> Self:
        """The word whose fields are ``static``, as they stand in an FX node's keyword arguments."""
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in static.items()}
        return cls(**values)

    def static(self) -> dict[str, Static]:
        """The fields as keyword arguments of the operator."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        fields = " ".join(f"{k}={format_static(v)}" for k, v in self.static().items())
        return f"{self.kind}{{{fields}}}" if fields else self.kind


def _schema_type(cls: type, name: str, annotation: object) -> str:
    if annotation not in _SCHEMA_TYPES:
        allowed = ", ".join(str(getattr(one, "__qualname__", one)) for one in _SCHEMA_TYPES)
        raise TypeError(f"the parameter `{name}` of {cls.__name__} is none of: {allowed}")
    return _SCHEMA_TYPES[annotation]


def format_static(value: Static) -> str:
    """A parameter in the printed IR: dtypes by their short names, lists with commas and no spaces."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple):
        return ",".join(str(v) for v in value)
    return str(value)


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` rounded to ``dtype``, back in float32 (a no-op for float32)."""
    return x if dtype == torch.float32 else x.to(dtype).float()
