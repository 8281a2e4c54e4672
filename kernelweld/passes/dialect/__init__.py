"""``dialect``: operators of serving engines become words, and are put back where no weld holds them."""

from __future__ import annotations

from kernelweld.passes.dialect.dialect_pass import DialectPass

__all__ = ["DialectPass"]
