"""``rope``: rotary position embedding of the last dimension by given cosines and sines."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.word import Word, rounded

STYLES = ("neox", "interleaved", "interleaved_to_halves")
TABLES = ("halves", "pairs", "half")


@dataclass(frozen=True)
class Rope(Word):
    """Rotates ``x[..., offset : offset + rotary_dim]`` and copies the rest of the last dimension unchanged.

    Formula, for each pair (a, b) of the rotary part with its cosine and sine::

        a' = a * cos_a - b * sin_a
        b' = b * cos_b + a * sin_b          products rounded to product_dtype, sums to dtype

    ``style`` says which elements are a pair and where it is written: ``neox`` pairs ``i`` with ``i +
    rotary_dim/2``; ``interleaved`` pairs ``2i`` with ``2i + 1``; ``interleaved_to_halves`` reads like
    ``interleaved`` and writes like ``neox`` (DeepSeek MLA). ``table`` says how cos and sin are laid out
    in their last dimension: ``halves`` (width rotary_dim; value of ``a`` in the first half, of ``b`` in
    the second), ``pairs`` (width rotary_dim, values alternate), ``half`` (width rotary_dim/2, shared by a
    and b). ``inverse`` rotates backwards (sin negated).

    Shapes: ``x [..., D]``; cos and sin broadcast against ``x`` in all but the last dimension. Out: the
    shape of ``x``. Rounding: as above; the inputs are used in float32. Source: Su et al. 2021, arXiv
    2104.09864.
    """

    kind = "rope"
    operands = ("x", "cos", "sin")

    rotary_dim: int
    offset: int = 0
    style: str = "neox"
    table: str = "halves"
    inverse: bool = False
    product_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, cos, sin = tensors
        assert x is not None and cos is not None and sin is not None
        rotary = x[..., self.offset : self.offset + self.rotary_dim].float()
        a, b = self.pair(rotary, "neox" if self.style == "neox" else "interleaved")
        cos_a, cos_b = self.table_pair(cos.float())
        sin_a, sin_b = self.table_pair(-sin.float() if self.inverse else sin.float())
        first = self._product(a, cos_a) - self._product(b, sin_a)
        second = self._product(b, cos_b) + self._product(a, sin_b)
        turned = self._join(first, second).to(self.dtype)
        before, after = x[..., : self.offset], x[..., self.offset + self.rotary_dim :]
        return torch.cat([before.to(self.dtype), turned, after.to(self.dtype)], -1)

    def _product(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return rounded(x * factor, self.product_dtype)

    @staticmethod
    def pair(x: torch.Tensor, style: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The first and second elements of all pairs of ``x``."""
        half = x.shape[-1] // 2
        return (x[..., :half], x[..., half:]) if style == "neox" else (x[..., 0::2], x[..., 1::2])

    def table_pair(self, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The table's values for the first and the second elements of all pairs."""
        if self.table == "half":
            return table, table
        return self.pair(table, "neox" if self.table == "halves" else "interleaved")

    def _join(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        if self.style == "interleaved":
            return torch.stack([first, second], -1).flatten(-2)
        return torch.cat([first, second], -1)
