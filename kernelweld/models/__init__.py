"""Serving-shaped DeepSeek-V3.2, MiniMax-M2.5 and Qwen3.5 blocks in plain torch.

Empty in this release: the fused models of today come from ``transformers``. The serving-shaped versions (paged
caches, slot mapping, tensor parallelism) belong in this room, written without any fusion by hand.
"""

from __future__ import annotations
