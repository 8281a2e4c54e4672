"""``kernelweld.vllm_pass``: what vLLM asks of it, its key, and what it leaves alone. vLLM is a stub here."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.experimental.proxy_tensor import make_fx

import kernelweld
from kernelweld.errors import BadOption, BadPipeline, UnknownName
from kernelweld.integrations import hook
from kernelweld.integrations.vllm import outcome, welder
from kernelweld.integrations.vllm.configured import VllmPass
from kernelweld.integrations.vllm.options import VARIABLE, Options
from kernelweld.integrations.vllm.statistics import STATISTICS
from kernelweld.passes import only_welds
from kernelweld.passes.weld import Weld

sys.path.insert(0, str(Path(__file__).parent))
import vllm_stub
from vllm_stub import Range

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of an earlier test, and vLLM in a version that is known."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("KERNELWELD_PIPELINE", raising=False)
    monkeypatch.setattr(STATISTICS, "pieces", [])
    vllm_stub.installed(monkeypatch, "0.33.0")
    welder.hook.cache_clear()


def norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def compiled_with(given: VllmPass) -> Tensor:
    """What ``norm`` computes once the pass was given its graph."""
    gm = make_fx(norm, tracing_mode="fake")(*inputs())
    given(gm.graph)
    gm.recompile()
    result: Tensor = gm(*inputs())
    return result


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 64), torch.randn(64)


# --- what it is ---


def run(code: str, **env: str) -> str:
    """The output of a new process."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_importing_kernelweld_imports_neither_vllm_nor_torch() -> None:
    loaded = "[name for name in ('vllm', 'torch') if name in sys.modules]"
    assert run(f"import sys, kernelweld; kernelweld.vllm_pass; print({loaded})") == "[]\n"


def test_every_path_that_vllm_resolves_to_it() -> None:
    """As vLLM does: the attribute is looked up in what ``__import__`` returns, the package at the top."""
    for path in ("kernelweld.vllm_pass", "kernelweld.integrations.vllm.vllm_pass"):
        *home, name = path.split(".")
        assert __import__(".".join(home)).__dict__[name] is kernelweld.vllm_pass


def test_it_is_one_of_vllms_passes_where_vllm_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    given = VllmPass(Options())
    assert given.__class__ is VllmPass and not isinstance(given, CustomGraphPass)
    vllm_stub.install(monkeypatch)
    assert isinstance(given, vllm_stub.InductorPass) and isinstance(given, CustomGraphPass)
    assert isinstance(given, VllmPass) and type(given) is VllmPass
    with pytest.raises(AttributeError):
        given.__class__ = int


@pytest.mark.parametrize("stubbed", [True, False])
def test_copies_keep_the_options_and_the_key(monkeypatch: pytest.MonkeyPatch, stubbed: bool) -> None:
    if stubbed:
        vllm_stub.install(monkeypatch)
    given = VllmPass(Options(max_tokens=256, without=("rms_norm.0",)))
    for twin in (pickle.loads(pickle.dumps(given)), copy.deepcopy(given), copy.copy(given)):
        assert type(twin) is VllmPass and twin is not given
        assert twin.options == given.options and twin.uuid() == given.uuid()
    assert repr(given) == f"VllmPass({given.options})"


def test_copies_keep_what_the_environment_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given = VllmPass()
    monkeypatch.setenv(VARIABLE, '{"max_tokens": 7}')
    sent = pickle.dumps(given)
    monkeypatch.setenv(VARIABLE, '{"max_tokens": 8}')
    assert pickle.loads(sent).options.max_tokens == 7
    assert given.options.max_tokens == 7, "read once"


# --- its key ---

OTHER = {
    "enabled": False,
    "pipeline": "canonicalize,raise,lower",
    "without": ("rms_norm.0",),
    "max_tokens": 256,
    "verify": True,
    "strict": True,
    "tuned": True,
    "untested_vllm": True,
}


def test_every_option_is_in_the_key() -> None:
    assert set(OTHER) == {field.name for field in fields(Options)}
    keys = [VllmPass(replace(Options(), **{name: value})).uuid() for name, value in OTHER.items()]  # type: ignore[arg-type]
    assert len({VllmPass(Options()).uuid(), *keys}) == len(OTHER) + 1


def test_the_version_of_vllm_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for version in ("0.26.0", "0.33.0", None):
        vllm_stub.installed(monkeypatch, version)
        keys.append(VllmPass(Options()).uuid())
    assert len(set(keys)) == 3


def test_the_pipeline_of_the_environment_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    own = VllmPass(Options()).uuid()
    monkeypatch.setenv("KERNELWELD_PIPELINE", "canonicalize,raise,lower")
    welder.hook.cache_clear()  # as in a new process
    assert VllmPass(Options()).uuid() != own


def test_the_pipeline_of_the_environment_is_verified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWELD_PIPELINE", "canonicalize,raise,plan,lower")
    welder.hook.cache_clear()  # as in a new process
    assert welder.hook(Options(verify=True)).pipeline == "canonicalize,raise,plan,verify-welds,lower"


def test_processes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv(VARIABLE, raising=False)
    assert run("import kernelweld; print(kernelweld.vllm_pass.uuid())").strip() == VllmPass(Options()).uuid()


def test_one_byte_of_any_source_file_is_in_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    twins = [(path, tmp_path / path.relative_to(ROOT)) for path in (ROOT / "kernelweld").rglob("*.py")]
    for path, twin in twins:
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_bytes(path.read_bytes())
    own = key_anew(monkeypatch)
    monkeypatch.setattr(kernelweld, "__file__", str(tmp_path / "kernelweld" / "__init__.py"))
    assert key_anew(monkeypatch) == own, "where the package lies is no part of it"
    for path, twin in twins[:: len(twins) // 8]:
        twin.write_bytes(path.read_bytes() + b"\n")
        assert key_anew(monkeypatch) != own
        twin.write_bytes(path.read_bytes())
    assert key_anew(monkeypatch) == own


def key_anew(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The key, as a process finds it that asks for the first time."""
    with monkeypatch.context() as anew:
        anew.setattr(hook, "environment", hook.environment.__wrapped__)
        anew.setattr(hook, "source_digest", hook.source_digest.__wrapped__)
        return VllmPass(Options()).uuid()


def test_no_artefact_of_another_process_is_taken_while_graphs_are_dumped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = VllmPass(Options()).uuid()
    monkeypatch.setenv("KERNELWELD_DUMP", str(tmp_path))
    here = VllmPass(Options()).uuid()
    assert here != own and VllmPass(Options()).uuid() == here
    welder._own_uuid.cache_clear()  # as in a new process
    assert VllmPass(Options()).uuid() not in (own, here)


# --- what it does ---


@pytest.mark.parametrize(
    ("options", "welds", "left_out"),
    [
        (Options(pipeline="canonicalize,raise,plan{keep-all=true}"), (), 0),
        (Options(without=("rms_norm",)), (), 1),
    ],
    ids=["a plan that nobody carries out", "left out"],
)
def test_what_is_not_made_is_not_told_as_made(
    monkeypatch: pytest.MonkeyPatch, options: Options, welds: tuple[str, ...], left_out: int
) -> None:
    vllm_stub.install(monkeypatch)
    torch._dynamo.reset()
    compiled = torch.compile(norm, options={outcome.KEY: VllmPass(options)})
    with inductor_config.patch(force_disable_caches=True), torch.no_grad():
        torch.testing.assert_close(compiled(*inputs()), norm(*inputs()))
    (piece,) = STATISTICS.pieces
    assert piece.welds == welds and len(piece.left_out) == left_out
    assert "nothing welded" in str(piece)


def test_it_welds_what_inductor_hands_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stub = vllm_stub.install(monkeypatch)
    stub.passes._pass_context = type("PassContext", (), {"compile_range": Range(1, 2048)})()
    torch._dynamo.reset()
    compiled = torch.compile(norm, options={outcome.KEY: VllmPass(Options())})
    with (
        caplog.at_level(logging.INFO, "vllm.kernelweld"),
        inductor_config.patch(force_disable_caches=True),
        torch.no_grad(),
    ):
        torch.testing.assert_close(compiled(*inputs()), norm(*inputs()))
    (piece,) = STATISTICS.pieces
    assert (piece.number, piece.tokens, piece.words, piece.welds) == (
        1,
        "1..2048",
        {"rms_norm": 1},
        ("rms_norm",),
    )
    (line,) = caplog.messages
    assert line == (
        "kernelweld: piece 1, 1..2048 tokens: 1 weld (1 rms_norm); "
        "compiled by Inductor, as on a CPU no kernels run; words: 1 rms_norm; 0 near misses"
    )
    assert caplog.records[0].filename == "kernelweld/welder.py"


@pytest.mark.parametrize(
    ("options", "welds"),
    [({"pipeline": "canonicalize,raise"}, ()), ({"verify": True}, ("rms_norm",))],
    ids=["pipeline", "verify"],
)
def test_options_are_carried_out(options: dict[str, object], welds: tuple[str, ...]) -> None:
    given = VllmPass(Options(**options))  # type: ignore[arg-type]
    torch.testing.assert_close(compiled_with(given), norm(*inputs()))
    assert [piece.welds for piece in STATISTICS.pieces] == [welds]


def test_a_weld_is_left_out_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[str] = []

    def weld_ids(graph: fx.Graph, welds: Iterable[Weld]) -> Mapping[Weld, str]:
        ids = made(graph, welds)
        known.extend(ids.values())
        return ids

    made = only_welds.weld_ids
    monkeypatch.setattr(only_welds, "weld_ids", weld_ids)
    compiled_with(VllmPass(Options(without=("00000000.0",))))
    compiled_with(VllmPass(Options(without=(known[0],))))
    assert [piece.welds for piece in STATISTICS.pieces] == [("rms_norm",), ()]


def test_the_pipeline_of_the_environment_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWELD_PIPELINE", "canonicalize,raise,plan,only-welds,lower")
    compiled_with(VllmPass(Options()))
    assert [piece.welds for piece in STATISTICS.pieces] == [()]


@pytest.mark.parametrize(
    ("version", "options", "reason"),
    [
        (None, {}, "vLLM is not installed; kernelweld was tested with 0.26 to 0.33"),
        ("0.25.1", {}, "vLLM 0.25.1 is older than 0.26, and kernelweld was tested with 0.26 to 0.33; "),
        ("0.34.0rc1", {}, "vLLM 0.34.0rc1 is newer than 0.33, and kernelweld was tested with 0.26 to 0.33; "),
        ("0.33.0", {"enabled": False}, 'KERNELWELD_OPTIONS says {"enabled": false}'),
    ],
    ids=["absent", "too old", "too new", "switched off"],
)
def test_where_it_does_not_work_it_says_so_once_and_leaves_graphs(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str | None,
    options: dict[str, object],
    reason: str,
) -> None:
    vllm_stub.install(monkeypatch, version)
    given = VllmPass(Options(**options))  # type: ignore[arg-type]
    assert isinstance(given, vllm_stub.InductorPass)
    torch.testing.assert_close(compiled_with(given), norm(*inputs()))
    assert STATISTICS.pieces == []
    (line,) = caplog.messages
    assert line.startswith(f"kernelweld: inactive: {reason}") and "\n" not in line


def test_an_untested_release_is_worked_in_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_stub.installed(monkeypatch, "0.34.0")
    compiled_with(VllmPass(Options(untested_vllm=True)))
    assert [piece.welds for piece in STATISTICS.pieces] == [("rms_norm",)]


@pytest.mark.parametrize(
    ("limit", "end", "applies"), [(None, 1 << 20, True), (256, 256, True), (256, 257, False)]
)
def test_ranges_above_the_limit_are_left_to_vllm(limit: int | None, end: int, applies: bool) -> None:
    assert VllmPass(Options(max_tokens=limit)).is_applicable_for_range(Range(1, end)) is applies


def broken(graph: fx.Graph) -> None:
    raise RuntimeError("no such luck")


def test_whatever_fails_leaves_the_graph_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(welder.KernelweldPass, "weld", lambda _, graph: broken(graph))
    torch.testing.assert_close(compiled_with(VllmPass(Options())), norm(*inputs()))
    assert caplog.messages == ["kernelweld: a graph was left as it was: RuntimeError: no such luck"]
    assert STATISTICS.pieces == []
    with pytest.raises(Exception, match="no such luck"):
        compiled_with(VllmPass(Options(strict=True)))


# --- mistakes in the options ---


@pytest.mark.parametrize(
    ("text", "error", "what"),
    [
        ("max_tokens=4", BadOption, "option 'KERNELWELD_OPTIONS' cannot be 'max_tokens=4'"),
        ("[1]", BadOption, "option 'KERNELWELD_OPTIONS' cannot be '[1]'"),
        ('{"max_token": 4}', UnknownName, "unknown option 'max_token'; did you mean 'max_tokens'?"),
        ('{"max_tokens": 0}', BadOption, "option 'max_tokens' cannot be 0"),
        ('{"max_tokens": true}', BadOption, "option 'max_tokens' cannot be True"),
        ('{"without": "rms_norm.0"}', BadOption, "option 'without' cannot be 'rms_norm.0'"),
        ('{"without": [0]}', BadOption, "option 'without' cannot be [0]"),
        ('{"without": ["a b"]}', BadOption, "option 'without' cannot be ['a b']"),
        ('{"without": [""]}', BadOption, "option 'without' cannot be ['']"),
        ('{"pipeline": []}', BadOption, "option 'pipeline' cannot be []"),
        ('{"enabled": 1}', BadOption, "option 'enabled' cannot be 1"),
    ],
)
def test_an_option_that_cannot_be_is_an_error_where_vllm_reads_it(
    monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception], what: str
) -> None:
    vllm_stub.install(monkeypatch)
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(error) as raised:
        isinstance(VllmPass(), vllm_stub.InductorPass)
    first, place, remedy = str(raised.value).splitlines()
    assert first == what
    assert place == "  at the environment variable KERNELWELD_OPTIONS"
    assert remedy.startswith("  how to proceed: ")


@pytest.mark.parametrize(
    ("text", "error"), [("canonicalize,rase", UnknownName), ("canonicalize,,lower", BadPipeline)]
)
def test_a_pipeline_that_cannot_be_run_is_an_error_too(
    monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception]
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"pipeline": text}))
    with pytest.raises(error) as raised:
        VllmPass().uuid()
    assert "  at the environment variable KERNELWELD_OPTIONS\n" in str(raised.value)


def test_all_options_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(OTHER))
    assert VllmPass().options == Options(**OTHER)  # type: ignore[arg-type]
    assert json.loads(VllmPass().options.to_json()) == {**OTHER, "without": ["rms_norm.0"]}
    monkeypatch.setenv(VARIABLE, "")
    assert VllmPass().options == Options()
