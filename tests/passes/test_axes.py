"""Axes: what views do to them, and what does not share a domain."""

from __future__ import annotations

from itertools import pairwise

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.passes.tasks.axes import AxisSpace, DomainMismatch, quotient

BATCH = sympy.Symbol("s0", integer=True, positive=True)


def sizes(space: AxisSpace, dims: tuple[object, ...]) -> list[list[object]]:
    return [[axis.size for axis in space.resolve(dim)] for dim in dims]  # type: ignore[arg-type, attr-defined]


def test_a_view_into_heads_splits_the_dimension_it_views() -> None:
    space = AxisSpace()
    hidden = (space.fresh(BATCH), space.fresh(sympy.Integer(48 * 128)))
    heads = space.regroup(hidden, [BATCH, sympy.Integer(48), sympy.Integer(128)])
    assert sizes(space, heads) == [[BATCH], [48], [128]]
    assert sizes(space, hidden) == [[BATCH], [48, 128]]


def test_flattening_goes_back_to_the_same_axes() -> None:
    space = AxisSpace()
    dims = (space.fresh(BATCH), space.fresh(sympy.Integer(7)), space.fresh(sympy.Integer(64)))
    flat = space.regroup(dims, [BATCH * 7, sympy.Integer(64)])
    back = space.regroup(flat, [BATCH, sympy.Integer(7), sympy.Integer(64)])
    assert [space.resolve(d) for d in back] == [space.resolve(d) for d in dims]


def test_dimensions_of_one_element_have_no_axes() -> None:
    space = AxisSpace()
    assert space.fresh(sympy.Integer(1)) == ()
    space.unify((), ())


def test_unequal_sizes_do_not_unify() -> None:
    space = AxisSpace()
    with pytest.raises(DomainMismatch, match="axes of 6 and 4 do not nest"):
        space.unify(space.fresh(sympy.Integer(6)), space.fresh(sympy.Integer(4)))


def test_a_symbolic_size_does_not_nest_in_a_number() -> None:
    space = AxisSpace()
    with pytest.raises(DomainMismatch):
        space.unify(space.fresh(BATCH), space.fresh(sympy.Integer(8)))


@pytest.mark.parametrize(
    ("whole", "part", "expected"), [(BATCH * 48, 48, BATCH), (BATCH, 2, None), (12, 5, None)]
)
def test_quotients_are_whole_or_none(whole: object, part: object, expected: object) -> None:
    assert quotient(sympy.sympify(whole), sympy.sympify(part)) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_any_regrouping_keeps_the_number_of_elements(factors: list[int], data: st.DataObject) -> None:
    space = AxisSpace()
    dims = tuple(space.fresh(sympy.Integer(f)) for f in factors)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(factors) - 1)), max_size=3)) - {len(factors)})
    bounds = [0, *cuts, len(factors)]
    new = [sympy.prod(factors[a:b]) for a, b in pairwise(bounds)]
    grouped = space.regroup(dims, [sympy.Integer(n) for n in new])
    assert [space.size(d) for d in grouped] == new
    assert [a for d in grouped for a in space.resolve(d)] == [a for d in dims for a in space.resolve(d)]
