"""Rotary tables in FX."""
from __future__ import annotations
