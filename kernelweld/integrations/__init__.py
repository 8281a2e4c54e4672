"""Where graphs come from: torch.compile, AOTAutograd without Inductor, and vLLM.

Only ``kernelweld.cli`` and the top-level package import this room.
"""

from __future__ import annotations
