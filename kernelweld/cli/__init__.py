"""The ``kernelweld`` command: one verb a file, results on stdout, everything else on stderr."""

from __future__ import annotations
