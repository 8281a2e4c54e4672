"""The executable as a whole: a reader that goes away, and passes that record what they saw."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from torch import fx, nn

from kernelweld.cli.reporting import RecordWelds
from kernelweld.cli.welded import RecordSpecimens
from kernelweld.passes.spec import format_pass


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As ``kernelweld patterns show rms_norm | true``: no message, and no traceback at the end."""
    command = [str(Path(sys.executable).with_name("kernelweld")), "patterns", "show", "rms_norm"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 0


def test_what_a_pass_records_is_none_of_its_options() -> None:
    record, specimens = RecordWelds(), RecordSpecimens()
    record.numbers["a step",] = 0
    specimens.found.append(fx.GraphModule(nn.Module(), fx.Graph()))  # type: ignore[arg-type]
    assert format_pass(record) == "record-welds"
    assert format_pass(specimens) == "record-specimens"
