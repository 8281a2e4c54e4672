"""Serving-shaped DeepSeek-V3.2, MiniMax-M2.5 and Qwen3.5 blocks in plain torch.

Empty in this release: the models fused today come from ``transformers``. Serving-shaped versions (paged
caches, slot mapping, tensor parallelism) belong in this room, written without any fusion by hand.
"""

from __future__ import annotations
