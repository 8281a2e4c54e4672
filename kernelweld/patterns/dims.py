"""Sizes compared without adding a guard, and named dimensions unified across the operands of one word."""

from __future__ import annotations

from collections.abc import Sequence

from torch import SymInt, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from kernelweld.patterns.ops import Size, shape_of, shape_text
from kernelweld.patterns.reading import NEARLY, Miss


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for every value of their symbols."""
    if isinstance(a, SymInt) or isinstance(b, SymInt):
        return statically_known_true(a == b)
    return a == b


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes are equal for every value of their symbols."""
    return len(a) == len(b) and all(same_size(x, y) for x, y in zip(a, b, strict=True))


def is_static(*sizes: object) -> bool:
    """Whether all sizes are plain integers."""
    return all(type(s) is int for s in sizes)


class Dims:
    """Named dimensions of one match: the first value that has a name fixes its size, later ones agree."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[Size, fx.Node]] = {}

    def unify(self, name: str, size: Size, owner: fx.Node) -> None:
        """Gives ``name`` the size it has in ``owner``, or checks it.

        Raises:
            Miss: the dimension has another size elsewhere in the word.
        """
        known, first = self._sizes.setdefault(name, (size, owner))
        if not same_size(known, size):
            template = "dimension {} is {} in %{} {} and {} in %{} {}"
            raise Miss(
                template, owner, name, known, first, _sizes(first), size, owner, _sizes(owner), stage=NEARLY
            )

    def unify_last(self, names: str, owner: fx.Node) -> None:
        """Unifies the trailing dimensions of ``owner`` with the space-separated ``names``.

        Raises:
            Miss: a dimension differs, or ``owner`` has fewer dimensions.
        """
        wanted, sizes = names.split(), shape_of(owner)
        if len(sizes) < len(wanted):
            raise Miss(
                "%{} has shape {}, not [..., {}]",
                owner,
                owner,
                _sizes(owner),
                ", ".join(wanted),
                stage=NEARLY,
            )
        for name, size in zip(wanted, sizes[-len(wanted) :], strict=True):
            self.unify(name, size, owner)


def _sizes(node: fx.Node) -> str:
    return shape_text(shape_of(node))
