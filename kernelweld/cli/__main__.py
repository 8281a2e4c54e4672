"""``python -m kernelweld.cli``."""

from __future__ import annotations

from kernelweld.cli.main import app

if __name__ == "__main__":
    app()
