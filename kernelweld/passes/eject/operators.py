"""How a node of a graph is written in torch: ``x * y``, ``x[..., :64]``, ``torch.rsqrt(x)``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.passes.eject.calls import Call, Names, call, function, literal, method, subscript
from kernelweld.passes.eject.layout import expression

aten, prims = torch.ops.aten, torch.ops.prims

Writer = Callable[[Call], ast.expr]

#: The end of a slice that goes to the end.
_END = 2**63 - 1
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _binary(kind: type[ast.operator]) -> Writer:
    def write(one: Call) -> ast.expr:
        left, right = one.arg(0), one.arg(1)
        alpha = one.keyword("alpha", 1)
        if alpha != 1:
            right = ast.BinOp(right, ast.Mult(), literal(alpha))
        return ast.BinOp(left, kind(), right)

    return write


def _compared(kind: type[ast.cmpop]) -> Writer:
    return lambda one: ast.Compare(one.arg(0), [kind()], [one.arg(1)])


def _function(name: str) -> Writer:
    return lambda one: function(name, *(one.written(value) for value in one.given))


def _method(name: str) -> Writer:
    return lambda one: method(one.arg(0), name, *(one.written(value) for value in one.given[1:]))


def _sized(name: str) -> Writer:
    """A method that takes a list of sizes or dimensions as arguments of its own."""

    def write(one: Call) -> ast.expr:
        sizes = one.value(1)
        assert isinstance(sizes, (list, tuple))
        given = [one.written(sizes)] if not sizes else map(one.written, sizes)
        return method(one.arg(0), name, *given)

    return write


def _dims(one: Call, value: object) -> ast.expr:
    """One dimension as a number, several as a tuple."""
    return one.written(value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value)


def _reduction(name: str) -> Writer:
    """``x.mean(-1, keepdim=True)``."""

    def write(one: Call) -> ast.expr:
        dims = [] if one.value(1) is None else [_dims(one, one.value(1))]
        keywords = {"keepdim": literal(True)} if one.value(2, False) else {}
        if one.keyword("dtype") is not None:
            keywords["dtype"] = literal(one.keyword("dtype"))
        return method(one.arg(0), name, *dims, **keywords)

    return write


def _var_mean(one: Call) -> ast.expr:
    keywords = {name: literal(value) for name, value in one.node.kwargs.items()}
    return function("var_mean", one.arg(0), _dims(one, one.value(1)), **keywords)


def _cast(one: Call) -> ast.expr:
    return method(one.arg(0), "to", one.arg(1))


def _same(one: Call) -> ast.expr:
    return one.arg(0)


def _clone(one: Call) -> ast.expr:
    dense = one.keyword("memory_format") is torch.contiguous_format
    return method(one.arg(0), "contiguous" if dense else "clone")


def _slice(one: Call) -> ast.expr:
    dim, start, end, step = (one.value(i, default) for i, default in enumerate((0, 0, _END, 1), 1))
    assert isinstance(dim, int)
    size: object = one.fake().shape[dim]
    to_end = end == _END or (isinstance(end, int) and isinstance(size, int) and end >= size)
    lower = None if start in (0, None) else one.written(start)
    upper = None if end is None or to_end else one.written(end)
    return _at(one, dim, ast.Slice(lower, upper, None if step == 1 else one.written(step)))


def _select(one: Call) -> ast.expr:
    dim = one.value(1)
    assert isinstance(dim, int)
    return _at(one, dim, one.arg(2))


def _at(one: Call, dim: int, item: ast.expr) -> ast.expr:
    """``x[..., item]``, or with as many colons as stand before ``item``."""
    dim %= one.rank()
    if dim == one.rank() - 1 and dim > 0:
        return subscript(one.arg(0), literal(...), item)
    return subscript(one.arg(0), *([ast.Slice()] * dim), item)


def _index(one: Call) -> ast.expr:
    indices = one.value(1)
    assert isinstance(indices, (list, tuple))
    return subscript(one.arg(0), *(ast.Slice() if i is None else one.written(i) for i in indices))


def _joined(name: str) -> Writer:
    return lambda one: function(name, one.arg(0), dim=one.written(one.value(1, 0)))


def _split(one: Call) -> ast.expr:
    return function("split", one.arg(0), one.arg(1), dim=one.written(one.value(2, 0)))


def _getitem(one: Call) -> ast.expr:
    return subscript(one.arg(0), one.arg(1))


def _made(name: str) -> Writer:
    """A new tensor on the device of the arguments."""

    def write(one: Call) -> ast.expr:
        keywords: dict[str, ast.expr] = {"dtype": literal(one.dtype), "device": expression(one.device)}
        return function(name, *map(one.written, one.given), **keywords)

    return write


def _number(one: Call) -> ast.expr:
    return function("tensor", one.arg(0), dtype=literal(one.dtype), device=expression(one.device))


def _where(one: Call) -> ast.expr:
    branches = [_plain(one, place, other) for place, other in ((1, 2), (2, 1))]
    return function("where", one.arg(0), *branches)


def _plain(one: Call, place: int, other: int) -> ast.expr:
    """A number in place of a tensor of it, where the other branch says what its dtype is."""
    node, beside = one.given[place], one.given[other]
    alone = isinstance(beside, fx.Node) and beside.target is not aten.scalar_tensor.default
    is_number = isinstance(node, fx.Node) and node.target is aten.scalar_tensor.default
    if alone and is_number and one.fake(other).dtype == one.fake(place).dtype:
        assert isinstance(node, fx.Node)
        return literal(node.args[0])
    return one.arg(place)


def _divided(one: Call) -> ast.expr:
    how = one.keyword("rounding_mode")
    if how == "floor" and one.fake().dtype in _INTEGERS:
        return ast.BinOp(one.arg(0), ast.FloorDiv(), one.arg(1))
    return function("div", one.arg(0), one.arg(1), rounding_mode=literal(how))


def _bits(one: Call) -> ast.expr:
    return method(one.arg(0), "view", one.arg(1))


def _size(one: Call) -> ast.expr:
    return subscript(ast.Attribute(one.arg(0), "shape", ast.Load()), one.arg(1))


def _copied(one: Call) -> ast.expr:
    """Into memory that nobody else has."""
    return method(one.arg(0), "copy_", one.arg(1))


def _index_put(one: Call) -> ast.expr:
    indices = one.value(1)
    assert isinstance(indices, (list, tuple))
    written = ast.Tuple([one.written(i) for i in indices], ast.Load())
    accumulate = {"accumulate": literal(True)} if one.value(3, False) else {}
    return method(one.arg(0), "index_put", written, one.arg(2), **accumulate)


def _quantized_tensor(one: Call) -> ast.expr:
    """``quantize_per_tensor``: times the inverse scale, rounded, the zero point added, held in the range."""
    shifted = ast.BinOp(function("round", _scaled(one)), ast.Add(), one.arg(2))
    return _held(one, shifted)


def _quantized_token(one: Call) -> ast.expr:
    """``quantize_per_token``: the zero point is added first, and then rounded."""
    return _held(one, function("round", ast.BinOp(_scaled(one), ast.Add(), one.arg(2))))


def _scaled(one: Call) -> ast.expr:
    return ast.BinOp(one.arg(0), ast.Mult(), ast.BinOp(literal(1.0), ast.Div(), one.arg(1)))


def _held(one: Call, codes: ast.expr) -> ast.expr:
    return method(method(codes, "clamp", one.arg(3), one.arg(4)), "to", one.arg(5))


_FUNCTIONS = (
    "abs",
    "rsqrt",
    "sqrt",
    "exp",
    "exp2",
    "log2",
    "log",
    "ceil",
    "floor",
    "round",
    "sigmoid",
    "tanh",
    "sin",
    "cos",
    "erf",
    "reciprocal",
    "signbit",
    "relu",
    "isnan",
    "isinf",
    "sign",
    "trunc",
    "logical_not",
    "log1p",
    "expm1",
    "square",
    "minimum",
    "maximum",
    "argmax",
    "logical_and",
    "logical_or",
)

#: The writer of each operator; any other is written as ``torch.ops.aten.name.overload(...)``.
WRITERS: Mapping[object, Writer] = MappingProxyType(
    {
        **{getattr(aten, name).default: _function(name) for name in _FUNCTIONS},
        prims.convert_element_type.default: _cast,
        aten._to_copy.default: lambda one: method(one.arg(0), "to", literal(one.dtype)),
        aten.add.Tensor: _binary(ast.Add),
        aten.sub.Tensor: _binary(ast.Sub),
        aten.mul.Tensor: _binary(ast.Mult),
        aten.div.Tensor: _binary(ast.Div),
        aten.div.Tensor_mode: _divided,
        aten.remainder.Scalar: _binary(ast.Mod),
        aten.remainder.Tensor: _binary(ast.Mod),
        aten.bitwise_and.Tensor: _binary(ast.BitAnd),
        aten.bitwise_and.Scalar: _binary(ast.BitAnd),
        aten.bitwise_or.Tensor: _binary(ast.BitOr),
        aten.bitwise_or.Scalar: _binary(ast.BitOr),
        aten.bitwise_xor.Tensor: _binary(ast.BitXor),
        aten.bitwise_not.default: lambda one: ast.UnaryOp(ast.Invert(), one.arg(0)),
        aten.__lshift__.Scalar: _binary(ast.LShift),
        aten.__rshift__.Scalar: _binary(ast.RShift),
        aten.bitwise_left_shift.Tensor_Scalar: _binary(ast.LShift),
        aten.bitwise_right_shift.Tensor_Scalar: _binary(ast.RShift),
        aten.eq.Scalar: _compared(ast.Eq),
        aten.eq.Tensor: _compared(ast.Eq),
        aten.ne.Scalar: _compared(ast.NotEq),
        aten.ne.Tensor: _compared(ast.NotEq),
        aten.gt.Scalar: _compared(ast.Gt),
        aten.gt.Tensor: _compared(ast.Gt),
        aten.ge.Scalar: _compared(ast.GtE),
        aten.ge.Tensor: _compared(ast.GtE),
        aten.lt.Scalar: _compared(ast.Lt),
        aten.lt.Tensor: _compared(ast.Lt),
        aten.le.Scalar: _compared(ast.LtE),
        aten.le.Tensor: _compared(ast.LtE),
        aten.neg.default: lambda one: ast.UnaryOp(ast.USub(), one.arg(0)),
        aten.pow.Tensor_Scalar: _method("pow"),
        aten.clamp_min.default: _method("clamp_min"),
        aten.clamp_max.default: _method("clamp_max"),
        aten.clamp.default: _method("clamp"),
        aten.where.self: _where,
        aten.mean.dim: _reduction("mean"),
        aten.sum.dim_IntList: _reduction("sum"),
        aten.amax.default: _reduction("amax"),
        aten.amin.default: _reduction("amin"),
        aten.var_mean.correction: _var_mean,
        aten.reshape.default: _sized("reshape"),
        aten.view.default: _sized("reshape"),
        aten._unsafe_view.default: _sized("reshape"),
        aten.expand.default: _sized("expand"),
        aten.permute.default: _sized("permute"),
        aten.transpose.int: _method("transpose"),
        aten.unsqueeze.default: _method("unsqueeze"),
        aten.squeeze.dim: _method("squeeze"),
        aten.squeeze.dims: _method("squeeze"),
        aten.alias.default: _same,
        aten.clone.default: _clone,
        aten.slice.Tensor: _slice,
        aten.select.int: _select,
        aten.index.Tensor: _index,
        aten.cat.default: _joined("cat"),
        aten.stack.default: _joined("stack"),
        aten.split.Tensor: _split,
        aten.split_with_sizes.default: _split,
        aten.full.default: _made("full"),
        aten.empty_strided.default: _made("empty_strided"),
        aten.empty.memory_format: _made("empty"),
        aten.scalar_tensor.default: _number,
        aten.view.dtype: _bits,
        aten.copy.default: _copied,
        aten.index_put.default: _index_put,
        aten.as_strided.default: _method("as_strided"),
        aten.sym_size.int: _size,
        operator.getitem: _getitem,
        operator.add: _binary(ast.Add),
        operator.sub: _binary(ast.Sub),
        operator.mul: _binary(ast.Mult),
        operator.floordiv: _binary(ast.FloorDiv),
        operator.mod: _binary(ast.Mod),
    }
)


def write(node: fx.Node, names: Names, device: str) -> ast.expr:
    """``node`` as an expression of what it reads. ``device`` spells the device of the arguments."""
    one = Call(node, names, device)
    name = str(node.target)
    if name.startswith("quantized_decomposed.quantize_per_tensor"):
        return _quantized_tensor(one)
    if name.startswith("quantized_decomposed.quantize_per_token"):
        return _quantized_token(one)
    return WRITERS.get(node.target, _operator)(one)


def _operator(one: Call) -> ast.expr:
    """Any other operator, by its full name."""
    target = one.node.target
    callee = expression(f"torch.ops.{target}" if isinstance(target, OpOverload) else "torch.ops")
    keywords = {
        k: expression(one.device) if k == "device" else one.written(v) for k, v in one.node.kwargs.items()
    }
    kept = {k: v for k, v in keywords.items() if k not in ("layout", "pin_memory")}
    return call(callee, *map(one.written, one.given), **kept)


def bits_of(nodes: Sequence[fx.Node]) -> dict[torch.dtype, torch.dtype]:
    """For each dtype that floats are seen as, the dtype that they have."""
    found = {}
    for node in nodes:
        if node.target is aten.view.dtype:
            source, seen = node.args
            assert isinstance(source, fx.Node) and isinstance(seen, torch.dtype)
            if source.meta["val"].dtype.is_floating_point:
                found[seen] = source.meta["val"].dtype
    return found
