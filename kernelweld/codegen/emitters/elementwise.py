"""Elementwise operations without a name of their own, as eager torch computes them on the given dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from kernelweld.codegen.emitters.contract import Emitter, equal_positions
from kernelweld.codegen.layout import Alignment
from kernelweld.codegen.piece import Piece
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.spelling import grouped, is_float, literal, sigmoid, triton_dtype
from kernelweld.codegen.task import Elementwise, Value
from kernelweld.codegen.tile import Tile, combine, rounded_to, unfused

_ALL_NAN = "propagate_nan=tl.PropagateNan.ALL"

#: The float32 expression of each operation of ``kernelweld.ir.pointwise.POINTWISE``.
_FLOAT: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "add": lambda a, b: f"{a} + {b}",
        "sub": lambda a, b: f"{a} - {b}",
        "mul": lambda a, b: f"{a} * {b}",
        "div": lambda a, b: f"tl.div_rn({a}, {b})",
        "neg": lambda a: f"-{a}",
        "abs": lambda a: f"tl.abs({a})",
        "exp": lambda a: f"tl.exp({a})",
        "log": lambda a: f"tl.log({a})",
        "sqrt": lambda a: f"tl.sqrt_rn({a})",
        "rsqrt": lambda a: f"tl.rsqrt({a})",
        "reciprocal": lambda a: f"tl.div_rn(1.0, {a})",
        "sigmoid": sigmoid,
        "tanh": lambda a: f"tanh_fp32({a})",
        "relu": lambda a: f"tl.maximum({a}, 0.0, {_ALL_NAN})",
        "sin": lambda a: f"tl.sin({a})",
        "cos": lambda a: f"tl.cos({a})",
        "maximum": lambda a, b: f"tl.maximum({a}, {b}, {_ALL_NAN})",
        "minimum": lambda a, b: f"tl.minimum({a}, {b}, {_ALL_NAN})",
        "clamp_min": lambda a, b: f"tl.maximum({a}, {b}, {_ALL_NAN})",
        "clamp_max": lambda a, b: f"tl.minimum({a}, {b}, {_ALL_NAN})",
        "cast": lambda a: a,
    }
)

#: The same for integers, where the result is an integer too.
_INTEGER: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        **{name: _FLOAT[name] for name in ("add", "sub", "mul", "neg", "abs", "cast")},
        "relu": lambda a: f"tl.maximum({a}, 0)",
        "maximum": lambda a, b: f"tl.maximum({a}, {b})",
        "minimum": lambda a, b: f"tl.minimum({a}, {b})",
        "clamp_min": lambda a, b: f"tl.maximum({a}, {b})",
        "clamp_max": lambda a, b: f"tl.minimum({a}, {b})",
    }
)

#: The operations that are generated.
GENERATED = frozenset(_FLOAT)

#: Sums, and what a compiler looks through when it fuses a product into one.
_SUMS = frozenset({"add", "sub"})
_LOOKED_THROUGH = frozenset({"neg", "cast"})

#: Operations that keep zero padding at zero.
_ZERO_KEEPING = frozenset({"add", "sub", "mul", "neg", "abs", "cast", "sqrt", "relu", "maximum", "minimum"})


def _tensors(step: Elementwise) -> list[Value]:
    return [v for v in step.ins if isinstance(v, Value)]


def align_elementwise(step: Elementwise) -> Sequence[Alignment]:
    return equal_positions(step.out, *_tensors(step))


def emit_elementwise(scope: Scope, step: Elementwise) -> None:
    """One line for every piece of the output."""
    table = _FLOAT if is_float(step.out.dtype) else _INTEGER
    if step.name not in table:
        kind = "float" if table is _FLOAT else "integer"
        raise Refused(f"elementwise operation `{step.name}` is not generated for {kind} results")
    for piece in scope.pieces(step.out):
        _emit_piece(scope, step, piece, table[step.name])


def _emit_piece(scope: Scope, step: Elementwise, piece: Piece, spell: Callable[..., str]) -> None:
    tiles = [_argument(step, v, scope.tile(v, piece)) for v in step.ins if isinstance(v, Value)]
    tiles = [unfused(t) for t in tiles] if step.name in _SUMS else tiles
    named = iter(tiles)
    texts = [next(named).text if isinstance(v, Value) else _scalar(step, v) for v in step.ins]
    count = max(t.count for t in tiles)
    # A column has no padding of its own, but its value reaches into the padding of the others.
    zeros = len(tiles) == len(step.ins) and all(t.clean and t.count == count for t in tiles)
    clean = zeros and step.name in _ZERO_KEEPING
    result = Tile(spell(*texts), any(t.rows for t in tiles), count, clean)
    result = (
        rounded_to(_marked(step, result, tiles[0]), step.out.dtype) if is_float(step.out.dtype) else result
    )
    unchanged = [tile for tile in tiles if tile.text == result.text]
    if unchanged:
        scope.bind(step.out, piece, unchanged[0])
    else:
        scope.define(step.out, piece, result)


def _marked(step: Elementwise, result: Tile, first: Tile) -> Tile:
    """``result`` with what a compiler could fuse into a sum after it."""
    if step.name in _LOOKED_THROUGH:
        return replace(result, product=first.product, dtype=first.dtype)
    return replace(result, product=step.name == "mul")


def _argument(step: Elementwise, value: Value, tile: Tile) -> Tile:
    """An operand in the type that the operation is computed in: float32, or the output's integer type.

    Torch first brings an integer operand to the result's float dtype, so it is rounded there.
    """
    out = step.out.dtype
    if is_float(out) and not is_float(value.dtype):
        wide = combine("{}.to(tl.float32)", tile, clean=tile.clean)
        return wide if step.name == "cast" else rounded_to(wide, out)
    if not is_float(out) and value.dtype != out:
        return combine(f"{{}}.to({triton_dtype(out)})", tile, clean=tile.clean)
    return tile


def _scalar(step: Elementwise, number: float | int) -> str:
    return grouped(literal(float(number) if is_float(step.out.dtype) else number))


ELEMENTWISE = Emitter(align_elementwise, emit_elementwise)
