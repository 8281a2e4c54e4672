"""The source line of a node is the user's: frames of passes that stand in for a module are skipped."""

from __future__ import annotations

from pathlib import Path

import kernelweld
from kernelweld.ir.origin import source_line

LINEAR = Path(kernelweld.__file__).parent / "passes" / "merge_gemms" / "linear.py"
USER = '  File "model.py", line 7, in forward\n    y = self.q(x)\n'
OURS = f'  File "{LINEAR}", line 67, in forward\n    return F.linear(input, slot.packed)\n'


def test_the_innermost_frame_of_the_user() -> None:
    assert source_line({"stack_trace": USER}) == "model.py:7"
    assert source_line({"stack_trace": USER + OURS}) == "model.py:7"


def test_no_frame_of_the_user() -> None:
    assert source_line({"stack_trace": OURS}) is None
    assert source_line({}) is None
