"""``rope_table``: the cosines and sines of a rotary embedding, from frequencies or from a cache of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.word import Word

SOURCES = ("inv_freq", "cache")
SECTIONS = ("none", "plain", "interleaved")


@dataclass(frozen=True)
class RopeTable(Word):
    """Cosines and sines at given positions.

    ``source="inv_freq"``: ``source_table`` is ``inv_freq [H]``; ``angle = float(position) * inv_freq``
    and ``cos = round(cos(angle) * scaling)``, likewise sin, rounded to ``dtype``. ``source="cache"``:
    ``source_table`` is ``[max_position, 2H]`` with cosines in the first half and sines in the second,
    indexed by position. ``layout="halves"`` repeats the H values twice (width 2H), ``"pairs"`` repeats
    each value in place, ``"half"`` leaves width H. ``sections`` (mrope, positions ``[3, ...]`` for time,
    height, width): ``plain`` takes consecutive runs of the H frequencies from the three rows in turn;
    ``interleaved`` takes frequency ``i`` from row ``i % 3`` while ``i < 3 * sections[i % 3]``, else from
    row 0.

    Shapes: positions ``[...]`` (or ``[3, ...]``), out two tensors ``[..., H or 2H]``.
    """

    kind = "rope_table"
    operands = ("positions", "source_table")
    results = 2

    source: str = "inv_freq"
    layout: str = "halves"
    sections: tuple[int, ...] = ()
    section_order: str = "none"
    scaling: float = 1.0
    dtype: torch.dtype = torch.float32

    def reference(self, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        positions, table = tensors
        assert positions is not None and table is not None
        if self.source == "cache":
            cos, sin = table[positions].chunk(2, -1)
        else:
            angle = positions[..., None].float() * table.float()
            cos, sin = torch.cos(angle) * self.scaling, torch.sin(angle) * self.scaling
        return self._spread(self._choose(cos)).to(self.dtype), self._spread(self._choose(sin)).to(self.dtype)

    def rows(self, width: int) -> list[int]:
        """Which of the three position rows each frequency is taken from."""
        if self.section_order == "plain":
            bounds = [sum(self.sections[: i + 1]) for i in range(3)]
            return [next(r for r in range(3) if i < bounds[r]) for i in range(width)]
        return [i % 3 if i % 3 and i < 3 * self.sections[i % 3] else 0 for i in range(width)]

    def _choose(self, values: torch.Tensor) -> torch.Tensor:
        if self.section_order == "none":
            return values
        rows = torch.tensor(self.rows(values.shape[-1]), device=values.device)
        index = rows.expand(values.shape[1:])[None]
        return values.gather(0, index)[0]

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        if self.layout == "halves":
            return torch.cat([values, values], -1)
        return values.repeat_interleave(2, -1) if self.layout == "pairs" else values
