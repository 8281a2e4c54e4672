"""torch's own quantization operators, ``quantized_decomposed.quantize_per_tensor`` and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir import Quant
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import FLOATS, aten, dtype_name, dtype_of, is_call, shape_of, shape_text
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern
from kernelweld.patterns.scalars import scalar

_OPS = torch.ops.quantized_decomposed
_BY_NUMBER = _OPS.quantize_per_tensor.default
_BY_TENSOR = (_OPS.quantize_per_tensor.tensor, _OPS.quantize_per_tensor.tensor2)
_PER_TOKEN = _OPS.quantize_per_token.default

#: Operators without a word, and why.
_OTHERS = {
    _OPS.quantize_per_channel.default: "its scales are a vector; quantize_per_token takes them as rows",
    _OPS.dequantize_per_tensor.default: "it gives values for codes, which no word does",
    _OPS.dequantize_per_tensor.tensor: "it gives values for codes, which no word does",
    _OPS.dequantize_per_tensor.tensor2: "it gives values for codes, which no word does",
    _OPS.dequantize_per_channel.default: "it gives values for codes, which no word does",
    _OPS.dequantize_per_token.default: "it gives values for codes, which no word does",
    _OPS.choose_qparams_per_token.default: (
        "its scales are float32 where the graph says float64; "
        "write x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127"
    ),
}


@dataclass(frozen=True)
class QuantOperatorPattern(ReadingPattern):
    """``quantize_per_tensor(x, scale, zero_point, low, high, int8)`` with a zero point of zero, and
    ``quantize_per_token``: products with the inverse of the scale, rounded half to even.

    A scale that is a number is inverted as a double and rounded to float32. So is one that is an element of a
    tensor; with twice the digits of float32 and two more, that has the bits of float32's reciprocal.
    """

    name: ClassVar[str] = "quant_operator"
    kind: ClassVar[str] = "quant"
    spelling: ClassVar[str] = "`quantize_per_tensor(x, scale, 0, low, high, int8)`, with a zero point of zero"
    anchors: ClassVar[tuple[OpOverload, ...]] = (_BY_NUMBER, *_BY_TENSOR, _PER_TOKEN, *_OTHERS)

    def read(self, anchor: fx.Node) -> Match:
        if anchor.target in _OTHERS:
            raise Miss("%{}: {}", anchor, anchor, _OTHERS[anchor.target])
        x, scale, zero, low, high = anchor.args[:5]
        assert isinstance(x, fx.Node)
        _check_codes(anchor)
        cover = Cover()
        cover.take(anchor)
        _check_zero(anchor, zero, cover)
        bounds = [scalar(bound) for bound in (low, high)]
        if None in bounds:
            raise Miss("%{} is clamped to values of the graph, {} and {}", anchor, anchor, low, high)
        x = upcast(x, cover)
        if dtype_of(x) not in FLOATS:
            raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
        first, last = (float(bound) for bound in bounds if bound is not None)
        if isinstance(scale, fx.Node):
            _check_scale(anchor, x, scale)
            return cover.match(Quant(first, last, "reciprocal", torch.int8), (x, scale), anchor)
        assert isinstance(scale, float)
        word = Quant(first, last, "multiply", torch.int8, number=1.0 / scale)
        return cover.match(word, (x, None), anchor)


def _check_codes(anchor: fx.Node) -> None:
    dtype = dtype_of(anchor)
    if dtype is not None and dtype.is_floating_point:
        template = (
            "%{} rounds to whole numbers before it becomes {}; write (x / scale).clamp(…).to({}) instead"
        )
        raise Miss(template, anchor, anchor, dtype_name(dtype), dtype_name(dtype), stage=NEARLY)
    if dtype != torch.int8:
        raise Miss("the codes of %{} are {}, not int8", anchor, anchor, dtype_name(dtype))


def _check_zero(anchor: fx.Node, zero: object, cover: Cover) -> None:
    """Takes the zero point, which is to be zero, as a number or a constant of the graph."""
    value = zero
    if is_call(zero, aten.full.default):
        value = zero.args[1]
        cover.share(zero)
    if scalar(value) is None:
        template = (
            "the zero point %{} of %{} is a value of the graph; a word has none: write zeros where it is"
        )
        raise Miss(template, anchor, zero, anchor, stage=NEARLY)
    if scalar(value):
        raise Miss("%{} has a zero point, {}; a word has none", anchor, anchor, value, stage=NEARLY)


def _check_scale(anchor: fx.Node, x: fx.Node, scale: fx.Node) -> None:
    """Checks that ``scale`` is one element, or one for each row for ``quantize_per_token``."""
    shape, name = shape_of(scale), dtype_name(dtype_of(scale))
    single = len(shape) < 2 and all(same_size(size, 1) for size in shape)
    rows = is_call(anchor, _PER_TOKEN) and same_shape(shape, (*shape_of(x)[:-1], 1))
    if dtype_of(scale) != torch.float32 or not (rows or (single and not is_call(anchor, _PER_TOKEN))):
        template = "the scale %{} of %{} is {} {}, neither one float32 nor one for each row"
        raise Miss(template, anchor, scale, anchor, name, shape_text(shape), stage=NEARLY)
