"""The typed report: round trip through JSON, and what a person sees of it."""

from __future__ import annotations

import io

from rich.console import Console

from kernelweld.ir.report import GraphReport, Launches, NearMiss, Report, WeldReport

REPORT = Report(
    (
        GraphReport(
            nodes=12,
            words={"rms_norm": 2, "rope": 1},
            near_misses=(
                NearMiss("rsqrt_1", "rms_norm", "model.py:7", "the mean is over dimension 1, not the last"),
            ),
            welds=(
                WeldReport(
                    "rms_norm_rope", ("rms_norm", "rope"), ("model.py:3", "model.py:4"), ("rms_norm -> rope",)
                ),
            ),
            launches=Launches(5, 3),
            seconds={"raise": 0.01},
        ),
    )
)


def test_json_round_trip() -> None:
    assert Report.from_json(REPORT.to_json()) == REPORT


def test_print_shows_tables() -> None:
    text = str(REPORT)
    for expected in (
        "12 calls",
        "2 rms_norm, 1 rope",
        "5 → 3 predicted",
        "rms_norm_rope",
        "model.py:3-4",
        "the mean is over",
    ):
        assert expected in text
    assert "\x1b" not in text


def test_rich_prints_the_same_tables() -> None:
    stream = io.StringIO()
    Console(file=stream, width=160, highlight=False).print(REPORT)
    assert "rms_norm_rope" in stream.getvalue()


def test_an_empty_report_says_so() -> None:
    assert str(Report()).strip() == "no graph was compiled yet"
