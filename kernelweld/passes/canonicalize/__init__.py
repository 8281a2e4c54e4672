"""``canonicalize``: one spelling for what graphs write in many ways. No result changes a bit."""

from __future__ import annotations

from kernelweld.passes.canonicalize.canonicalize_pass import CanonicalizePass

__all__ = ["CanonicalizePass"]
