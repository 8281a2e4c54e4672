"""kernelweld: compiler passes for automatic kernel fusion in LLM inference."""

from __future__ import annotations
