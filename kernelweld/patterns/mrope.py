"""The choice that mrope makes between the tables of time, height and width."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import SELECT, SLICE, aten, is_call, only_user, shape_of
from kernelweld.patterns.reading import NEARLY, Miss
from kernelweld.patterns.regions import region
from kernelweld.patterns.rope_join import last_dim_parts

SELECT_SCATTER, SLICE_SCATTER = aten.select_scatter.default, aten.slice_scatter.default
ROWS = 3

#: A run is a slice and a select, in either order.
_VIEWS = 2


@dataclass(frozen=True)
class Choice:
    """``value`` holds one row; ``sections`` and ``order`` say which row each frequency was taken from."""

    value: fx.Node
    sections: tuple[int, ...]
    order: str


def is_choice(tables: fx.Node) -> bool:
    """Whether ``tables`` are three rows that are read one by one, not a batch of three."""
    if not shape_of(tables) or shape_of(tables)[0] != ROWS or len(tables.users) < 2:
        return False
    return all(_reads_a_row(user) for user in tables.users)


def _reads_a_row(user: fx.Node) -> bool:
    if is_call(user, SLICE) and (only := only_user(user)) is not None:
        user = only
    if is_call(user, SELECT):
        return bool(user.args[1] == 0)
    return is_call(user, SELECT_SCATTER) and bool(user.args[2] == 0)


def read_choice(tables: fx.Node, cover: Cover) -> Choice:
    """The choice made of ``tables``, of shape ``[3, ..., H]`` or ``[3, ..., 2H]`` with the values twice.

    Raises:
        Miss: what follows chooses in another way.
    """
    scattered = any(is_call(user, SELECT_SCATTER) for user in tables.users)
    return _interleaved(tables, cover) if scattered else _plain(tables, cover)


def _interleaved(tables: fx.Node, cover: Cover) -> Choice:
    """Elements 1, 4, 7 … of the first row come from the second row, elements 2, 5, 8 … from the third."""
    width = shape_of(tables)[-1]
    counts = [0] * ROWS
    current = tables
    while (step := _scatter_of(current)) is not None:
        row, count = _overwritten(step, current, cover)
        if counts[row]:
            raise Miss("row {} is written to twice in %{}", step, row, step, stage=NEARLY)
        counts[row], current = count, step
    chosen = only_user(current)
    if not is_call(chosen, SELECT) or chosen.args[1:] != (0, 0):
        raise Miss("%{} is not read at its first row alone", current, current)
    if not isinstance(width, int):
        raise Miss("the width of %{} is a symbol", tables, tables)
    cover.take(chosen)
    return Choice(chosen, (width - sum(counts), *counts[1:]), "interleaved")


def _scatter_of(tables: fx.Node) -> fx.Node | None:
    return next((u for u in tables.users if is_call(u, SELECT_SCATTER) and u.args[0] is tables), None)


def _overwritten(step: fx.Node, tables: fx.Node, cover: Cover) -> tuple[int, int]:
    """``tables[0, ..., row::3] = tables[row, ..., row::3]``: the row and how many elements."""
    inner = step.args[1]
    if step.args[2:] != (0, 0) or not is_call(inner, SLICE_SCATTER) or not _is_row(inner.args[0], tables, 0):
        raise Miss("%{} does not overwrite elements of the first row", step, step)
    source = inner.args[1]
    found = region(source) if isinstance(source, fx.Node) else None
    row = found.base.args[2] if found is not None and is_call(found.base, SELECT) else None
    if found is None or not isinstance(row, int) or not _is_row(found.base, tables, row):
        raise Miss("%{} is not written with elements of another row", step, step)
    last = len(shape_of(inner)) - 1
    stride = inner.args[5] if len(inner.args) > 5 else 1
    if not row or (found.start, found.step) != (row, ROWS) or (*inner.args[2:4], stride) != (last, row, ROWS):
        template = "%{} does not write every third element from the row of that number"
        raise Miss(template, step, step, stage=NEARLY)
    row_zero = inner.args[0]
    assert isinstance(row_zero, fx.Node)
    cover.take(step, inner, row_zero, *found.path)
    return row, found.length


def _is_row(node: object, tables: fx.Node, row: int) -> bool:
    return is_call(node, SELECT) and node.args == (tables, 0, row)


def _plain(tables: fx.Node, cover: Cover) -> Choice:
    """A ``cat`` of consecutive runs of the three rows, in turn."""
    joined = _joined(tables)
    parts = last_dim_parts(joined) if joined is not None else None
    if joined is None or parts is None:
        raise Miss("%{} is not read row by row", tables, tables)
    lengths, at = [], 0
    for index, part in enumerate(parts):
        row, start, length = _run(part, tables, cover)
        if (row, start) != (index % ROWS, at):
            raise Miss("%{} does not join runs of the three rows in turn", joined, joined, stage=NEARLY)
        lengths.append(length)
        at += length
    sections = tuple(lengths[:ROWS])
    if at != shape_of(tables)[-1] or tuple(lengths) not in (sections, sections * 2):
        raise Miss("%{} does not join all of the three rows", joined, joined, stage=NEARLY)
    cover.take(joined)
    return Choice(joined, sections, "plain")


def _joined(tables: fx.Node) -> fx.Node | None:
    """The value that is two views above: what joins the runs."""
    node: fx.Node | None = tables
    for _ in range(_VIEWS + 1):
        node = next(iter(node.users), None) if node is not None else None
    return node


def _run(part: fx.Node, tables: fx.Node, cover: Cover) -> tuple[int, int, int]:
    """Row, start and length of ``tables[row, ..., start : start + length]``, sliced first or last."""
    cover.take(part)
    if is_call(part, SELECT) and part.args[1] == 0 and isinstance(part.args[2], int):
        found = region(part.args[0]) if isinstance(part.args[0], fx.Node) else None
        if found is not None and found.base is tables and found.step == 1:
            cover.take(*found.path[:-1])
            return part.args[2], found.start, found.length
    found = region(part)
    if found is None or found.step != 1 or not is_call(found.base, SELECT):
        raise Miss("%{} is not a run of a row of %{}", part, part, tables)
    source, dim, row = found.base.args
    if source is not tables or dim != 0 or not isinstance(row, int):
        raise Miss("%{} is not a run of a row of %{}", part, part, tables)
    cover.take(*found.path)
    return row, found.start, found.length
