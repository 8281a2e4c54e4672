"""Taking a weld away: its kernel as a file of its own that needs only torch and triton."""

from __future__ import annotations

from kernelweld.passes.eject.file import Provenance, eject, sources_of, words_of

__all__ = ["Provenance", "eject", "sources_of", "words_of"]
