"""The serving runtime: scheduler, block pool, async stepping, CUDA graphs and state transfer.

Empty in this release. It will use ``kernelweld.ir`` and the public API only, never the passes' insides.
"""

from __future__ import annotations
