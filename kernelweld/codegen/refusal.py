"""The inner signal that a task cannot become a kernel; ``emit`` turns it into ``CodegenFailed`` with
the weld's name and source.
"""

from __future__ import annotations


class Refused(Exception):
    """Why no kernel can be generated, as a clause that follows "no kernel for weld 'x': "."""
