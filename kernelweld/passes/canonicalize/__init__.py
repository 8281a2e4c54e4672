"""``canonicalize``: one spelling for what graphs write in many ways, without changing a bit of any result or adding a guard."""

from __future__ import annotations

from kernelweld.passes.canonicalize.canonicalize_pass import CanonicalizePass

__all__ = ["CanonicalizePass"]
