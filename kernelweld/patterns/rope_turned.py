"""``cat(a cos - b sin, b cos + a sin)``: the rotary embedding that turns the halves separately."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import ADD, SUB, dtype_of, is_call, operands, shape_of
from kernelweld.patterns.reading import LOOKS_LIKE, NEARLY, Miss, something_else
from kernelweld.patterns.regions import Region, region
from kernelweld.patterns.rope_join import Join
from kernelweld.patterns.rope_turn import Turn, check_table, common_dtype, factors, paired

Pair = tuple[fx.Node, fx.Node]


@dataclass(frozen=True)
class Term:
    """One of the four products: a half of ``x`` times a table."""

    half: Region
    table: fx.Node
    product: fx.Node


def read_turned(join: Join, cover: Cover) -> Turn:
    """The rotation whose halves ``join`` joins.

    Raises:
        Miss: it is none.
    """
    sums = (_terms(join.first), _terms(join.second))
    if sums[0] is None or sums[1] is None:
        raise something_else(join.value)
    best: Miss | None = None
    for base in _common_bases((*sums[0], *sums[1])):
        try:
            return _read(join, base, sums[0], sums[1], cover)
        except Miss as miss:
            best = best or miss
    raise best or something_else(join.value)


def _terms(node: fx.Node) -> Pair | None:
    """Both products of a sum or difference."""
    pair = operands(node) if is_call(node, *ADD, *SUB) else None
    if pair is None or factors(pair[0]) is None or factors(pair[1]) is None:
        return None
    return pair  # type: ignore[return-value]


def _common_bases(products: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    """The values that all four products read a part of."""
    common: list[fx.Node] | None = None
    for product in products:
        found = [r.base for f in factors(product) or () if (r := region(f)) is not None]
        common = found if common is None else [b for b in common if b in found]
    return tuple(dict.fromkeys(common or ()))


def _read(join: Join, base: fx.Node, first: Pair, second: Pair, cover: Cover) -> Turn:
    inverse = is_call(join.second, *SUB)
    if is_call(join.first, *SUB) == inverse:
        both = "subtract" if inverse else "add"
        raise Miss(
            "both halves {} in %{}; a rotation subtracts in one", join.value, both, join.value, stage=NEARLY
        )
    difference, total = (second, first) if inverse else (first, second)
    u, v = (_term(p, base) for p in difference)
    others = [_term(p, base) for p in total]
    crossed = next((t for t in others if t.half.same_as(v.half)), None)
    straight = next((t for t in others if t is not crossed), None)
    if crossed is None or straight is None or not straight.half.same_as(u.half):
        template = "the halves {} and {} of the difference are not those of the sum, {} and {}"
        raise Miss(template, join.value, u.half, v.half, *(t.half for t in others), stage=NEARLY)
    a, b = (v.half, u.half) if inverse else (u.half, v.half)
    part, style = paired(a, b, join.value)
    cosines, sines = (u, crossed), (v, straight)
    if inverse:
        cosines, sines = cosines[::-1], sines[::-1]
    cos, cos_table = _table("cosines", cosines)
    sin, sin_table = _table("sines", sines)
    if cos_table != sin_table:
        raise Miss(
            "the cosines lie in {} and the sines in {}", join.value, cos_table, sin_table, stage=NEARLY
        )
    return _finish(
        join, (u, v, crossed, straight), part, style, (cos, sin), cos_table, inverse=inverse, cover=cover
    )


def _term(product: fx.Node, base: fx.Node) -> Term:
    pair = factors(product)
    assert pair is not None
    for half, table in (pair, pair[::-1]):
        found = region(half)
        if found is not None and found.base is base:
            return Term(found, table, product)
    raise something_else(product)


def _table(what: str, terms: tuple[Term, Term]) -> tuple[fx.Node, str]:
    """The table of both halves and how it is laid out."""
    first, second = terms[0].table, terms[1].table
    if first is second:
        return first, "half"
    a, b = region(first), region(second)
    if a is not None and b is not None and a.base is b.base and dtype_of(a.base) == dtype_of(first):
        part, layout = paired(a, b, terms[1].product)
        if part.whole:
            return part.base, "halves" if layout == "neox" else "pairs"
    template = "the halves are turned by different {}, %{} and %{}"
    raise Miss(template, terms[1].product, what, first, second, stage=NEARLY)


def _finish(
    join: Join,
    terms: tuple[Term, ...],
    part: Region,
    style: str,
    tables: Pair,
    layout: str,
    *,
    inverse: bool,
    cover: Cover,
) -> Turn:
    if style == "neox" and join.pairs:
        raise Miss("%{} joins halves that lie end to end by pairs", join.value, join.value, stage=NEARLY)
    if style == "interleaved" and not join.pairs:
        style = "interleaved_to_halves"
    for term in terms:
        check_table(term.table, part.length // 2, term.product, shape_of(join.first))
        common_dtype(terms[0].product, term.product)
        term.half.share(cover)
        if layout != "half":
            cover.share(term.table)
        cover.take(term.product)
    cover.take(join.first, join.second)
    dtype = common_dtype(join.first, join.second)
    product_dtype = common_dtype(terms[0].product, terms[1].product)
    if dtype != product_dtype:
        raise Miss(
            "%{} is {}, its products {}", join.first, join.first, dtype, product_dtype, stage=LOOKS_LIKE
        )
    at = next((n for n in terms[0].half.path[1:] if (r := region(n)) is not None and r.same_as(part)), None)
    return Turn(part, at, *tables, style, layout, inverse, product_dtype, join.value)
