"""All rewrites by the operator that they start from, in the order in which they are tried."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import fx

from kernelweld.passes.canonicalize import arithmetic, exponents, outer, slices, views
from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.patterns.ops import (
    ADD,
    CAST,
    CAT,
    CLONE,
    DIV,
    EXPAND,
    MUL,
    POW,
    RESHAPE,
    SELECT,
    SLICE,
    SQUEEZE,
    SUB,
    UNSQUEEZE,
    aten,
)

#: A rewrite returns the node that takes the place of its argument, the argument itself if it was changed in
#: place, or None.
Rewrite = Callable[[fx.Node, Storage], fx.Node | None]

REWRITES: Mapping[object, tuple[Rewrite, ...]] = MappingProxyType(
    {
        operator.getitem: (slices.split_part, slices.unbound, arithmetic.largest),
        **{overload: (views.as_reshape,) for overload in RESHAPE[1:]},
        aten.alias.default: (views.idle_view,),
        aten.detach.default: (views.idle_view,),
        aten.transpose.int: (views.as_permute,),
        aten.t.default: (views.as_permute,),
        RESHAPE[0]: (
            views.idle_view,
            views.undone_view,
            views.written_out,
            views.nested_reshape,
            views.idle_view,
        ),
        EXPAND: (views.idle_view, views.written_out),
        views.PERMUTE: (views.identity_permute, views.undone_view),
        UNSQUEEZE: (slices.plain_dim, views.undone_view),
        **{overload: (views.undone_view,) for overload in SQUEEZE},
        CAT: (slices.plain_dim,),
        SELECT: (slices.plain_dim, views.only_part),
        aten.slice_scatter.default: (slices.plain_slice_scatter,),
        aten.select_scatter.default: (slices.plain_select_scatter,),
        SLICE: (slices.plain_slice, slices.idle_slice, slices.nested_slice, slices.past_scatter),
        ADD[0]: (arithmetic.identity,),
        SUB[0]: (arithmetic.identity,),
        MUL[0]: (arithmetic.identity,),
        DIV[0]: (arithmetic.identity,),
        **{overload: (arithmetic.scalar_overload,) for overload in (ADD[1], SUB[1], MUL[1], DIV[1])},
        POW: (arithmetic.square,),
        aten.bmm.default: (outer.outer_product,),
        aten.mm.default: (outer.outer_product,),
        aten._to_copy.default: (arithmetic.plain_cast,),
        CAST: (arithmetic.idle_copy, views.view_of_codes, exponents.byte_of_power, exponents.byte_of_scale),
        CLONE: (arithmetic.idle_copy,),
    }
)
