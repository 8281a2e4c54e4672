"""What follows a normalised value and belongs to its word: rounding, weight, bias, gate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.patterns.activation import Activation, read_activation
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import (
    ADD,
    CAST,
    HALVES,
    MUL,
    Size,
    dtype_of,
    is_call,
    only_user,
    other_operand,
    shape_of,
)
from kernelweld.patterns.pattern import NoMatch
from kernelweld.patterns.reading import Miss
from kernelweld.patterns.regions import Region
from kernelweld.patterns.weights import Weight, read_vector, read_weight


class Tail:
    """Walks forward from a value, one user at a time, and takes what it is asked for when it is there.

    A value that has several users ends the walk. ``stopped`` tells why the last thing that was looked for was
    not taken.
    """

    def __init__(self, value: fx.Node, cover: Cover) -> None:
        self.value = value
        self.stopped: NoMatch | None = None
        self._cover = cover

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the value reached."""
        dtype = dtype_of(self.value)
        assert dtype is not None
        return dtype

    def rounding(self) -> torch.dtype:
        """Takes a cast from float32 to a 16-bit float; the dtype reached."""
        user = only_user(self.value)
        if self.dtype == torch.float32 and is_call(user, CAST) and dtype_of(user) in HALVES:
            self._advance(user)
        return self.dtype

    def weight(self, width: Size, *, plus_one: bool = True) -> Weight | None:
        """Takes a product with a weight of ``width``; ``plus_one`` says whether ``1 + w`` is taken apart."""
        user, factor = self._other(MUL)
        if user is None or factor is None:
            return None
        trial = Cover()
        try:
            weight = read_weight(factor, width, trial, plus_one=plus_one)
        except Miss as miss:
            self.stopped = miss.no_match
            return None
        self._cover.merge(trial)
        self._advance(user)
        return weight

    def bias(self, width: Size) -> fx.Node | None:
        """Takes a sum with a bias of ``width``."""
        user, term = self._other(ADD)
        if user is None or term is None:
            return None
        trial = Cover()
        try:
            bias = read_vector(term, width, trial)
        except Miss as miss:
            self.stopped = miss.no_match
            return None
        self._cover.merge(trial)
        self._advance(user)
        return bias

    def gate(self, acts: Sequence[str]) -> Activation | None:
        """Takes a product with one of ``acts``, computed and kept in float32."""
        user, factor = self._other(MUL)
        if user is None or factor is None or dtype_of(factor) != torch.float32:
            return None
        trial = Cover()
        try:
            gate = read_activation(factor, trial)
            trial.take(user)
            trial.check(user)
        except Miss as miss:
            self.stopped = miss.no_match if miss.no_match.stage else self.stopped
            return None
        if gate.act not in acts:
            return None
        self._cover.merge(trial)
        self._advance(user)
        return gate

    def take(self, user: fx.Node, *regions: Region) -> None:
        """Takes ``user``, which reads ``regions`` of an operand besides the value reached."""
        for region in regions:
            region.share(self._cover)
        self._advance(user)

    def _other(self, ops: tuple[OpOverload, ...]) -> tuple[fx.Node | None, fx.Node | None]:
        """The only user, if it is one of ``ops`` and keeps the shape, and its other operand."""
        user = only_user(self.value)
        other = other_operand(user, self.value) if is_call(user, *ops) else None
        if user is None or not isinstance(other, fx.Node):
            return None, None
        return (user, other) if same_shape(shape_of(user), shape_of(self.value)) else (None, None)

    def _advance(self, user: fx.Node) -> None:
        self._cover.take(user)
        self.value = user
        self.stopped = None
