"""vLLM: the pass for its compilation config, what it logs, and the configuration we recommend.

Nothing here imports vLLM unless vLLM is already there.
"""

from __future__ import annotations
