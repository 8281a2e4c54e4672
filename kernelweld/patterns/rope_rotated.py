"""``x cos + rotate(x) sin``: the rotary embedding with the halves of ``x`` swapped and one negated."""

from __future__ import annotations

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import ADD, MUL, SUB, aten, is_call, only_user, operands, other_operand, shape_of
from kernelweld.patterns.reading import LOOKS_LIKE, NEARLY, Miss, something_else
from kernelweld.patterns.regions import Region, region
from kernelweld.patterns.rope_join import Join
from kernelweld.patterns.rope_turn import Turn, check_table, common_dtype, factors, paired
from kernelweld.patterns.scalars import split_scalar

NEG = aten.neg.default


def is_rotation(join: Join) -> bool:
    """Whether a join looks like ``rotate(x)``: a part is negated, or halves of one value are swapped."""
    if _sign(join.first) < 0 or _sign(join.second) < 0:
        return True
    first, second = region(join.first), region(join.second)
    if first is None or second is None or first.base is not second.base:
        return False
    return second.start < first.start and factors(only_user(join.value)) is not None


def read_rotated(join: Join, cover: Cover) -> Turn:
    """The rotation that ``join`` swaps the halves for.

    Raises:
        Miss: it is none.
    """
    signs = _sign(join.first), _sign(join.second)
    second, first = _half(join.first, cover), _half(join.second, cover)
    if second.base is not first.base and factors(only_user(join.value)) is None:
        raise something_else(join.value)
    if signs[0] == signs[1]:
        which = "neither half is" if signs[0] > 0 else "both halves are"
        raise Miss("{} negated in %{}", join.value, which, join.value, stage=LOOKS_LIKE)
    part, style = paired(first, second, join.value)
    if (style == "interleaved") != join.pairs:
        how = "by pairs" if join.pairs else "end to end"
        raise Miss("%{} joins {} halves {}", join.value, join.value, style, how)
    return _products(join, part, style, inverse=signs[0] > 0, cover=cover)


def _sign(node: fx.Node) -> int:
    """-1 for a negated value, else 1."""
    if is_call(node, NEG):
        return -1
    split = split_scalar(node) if is_call(node, *MUL) else None
    return -1 if split is not None and split[1] == -1.0 else 1


def _half(node: fx.Node, cover: Cover) -> Region:
    if _sign(node) < 0:
        cover.take(node)
        node = next(a for a in node.args if isinstance(a, fx.Node))
    found = region(node)
    if found is None:
        raise something_else(node)
    found.share(cover)
    return found


def _products(join: Join, part: Region, style: str, *, inverse: bool, cover: Cover) -> Turn:
    if len(join.value.users) > 1:
        raise Miss("the rotated value %{} is used by {} nodes", join.value, join.value, len(join.value.users))
    sin_product = only_user(join.value)
    sin = other_operand(sin_product, join.value) if is_call(sin_product, *MUL) else None
    if sin_product is None or not isinstance(sin, fx.Node):
        raise Miss("the rotated value %{} is not multiplied by a table", join.value, join.value)
    total = only_user(sin_product)
    if not is_call(total, *ADD, *SUB) or (pair := operands(total)) is None:
        raise Miss("the product %{} is not added to x cos", sin_product, sin_product)
    if is_call(total, *SUB):
        if pair[1] is not sin_product:
            raise Miss("%{} subtracts x cos from the rotated part", total, total, stage=NEARLY)
        inverse = not inverse
    cos_product = other_operand(total, sin_product)
    x, cos = _straight(cos_product, part, total)
    assert isinstance(cos_product, fx.Node)
    for table, product in ((cos, cos_product), (sin, sin_product)):
        check_table(table, part.length, product, shape_of(x))
    dtype = common_dtype(cos_product, sin_product)
    cover.take(join.value, sin_product, total, cos_product)
    read = region(x)
    assert read is not None
    read.share(cover)
    table_kind = "pairs" if join.pairs else "halves"
    return Turn(part, x, cos, sin, style, table_kind, inverse, dtype, total)


def _straight(product: object, part: Region, total: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The factors of ``x cos``, ``x`` being what ``part`` reads."""
    pair = factors(product)
    if pair is None:
        raise Miss("%{} does not add x cos", total, total)
    for x, cos in (pair, pair[::-1]):
        found = region(x)
        if found is not None and found.same_as(part):
            return x, cos
    raise Miss("%{} multiplies %{}, but {} is rotated", total, product, pair[0], part, stage=NEARLY)
