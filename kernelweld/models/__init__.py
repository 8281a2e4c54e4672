"""Models as they are served, in plain torch with nothing fused by hand: DeepSeek-V3.2.

Paged caches, batches of flattened tokens, tensor parallelism, checkpoints of Hugging Face's layout.
MiniMax-M2.5 and Qwen3.5 are fused from ``transformers``.
"""

from __future__ import annotations
