"""The pipeline of ``fuse``: its own, that of the environment, and what is added to either."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from torch import Tensor
from torch._functorch import config as autograd_config
from torch._inductor import config as inductor_config
from typer.testing import CliRunner

import kernelweld
from kernelweld.cli.main import app
from kernelweld.errors import BadPipeline, UnknownName
from kernelweld.integrations import offered
from kernelweld.integrations.hook import KernelweldPass
from kernelweld.integrations.settings import VARIABLE, Settings, chosen_pipeline, settings_from
from kernelweld.passes import table
from kernelweld.passes.pipeline import DEFAULT

Command = Callable[..., Result]

OTHER = "canonicalize,raise,plan,only-welds,lower"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, DEFAULT),
        ({"verify": True}, DEFAULT.replace(",lower", ",verify-welds,lower")),
        ({"backend": "interpret"}, DEFAULT.replace("lower", "lower{target=triton}")),
        (
            {"backend": "interpret", "pipeline": "plan,lower{target=reference}"},
            "plan,lower{target=reference}",
        ),
        ({"verify": True, "pipeline": "lower,canonicalize"}, "verify-welds,lower,canonicalize"),
    ],
)
def test_what_is_added_to_a_pipeline(options: dict[str, str | bool], text: str) -> None:
    assert Settings(**options).text == text  # type: ignore[arg-type]


def test_the_environment_takes_the_place_of_any_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, OTHER)
    assert settings_from(None).text == OTHER
    assert settings_from({"pipeline": "raise"}).text == OTHER
    both = settings_from(None, verify=True, backend="interpret").text
    assert both == "canonicalize,raise,plan,only-welds,verify-welds,lower{target=triton}"
    assert settings_from({"pipeline": "plan,lower{target=reference}"}).text.endswith(
        "lower{target=reference}"
    )
    assert chosen_pipeline("plan,lower{target=triton}") == OTHER.replace("lower", "lower{target=triton}")
    assert Settings().text == DEFAULT, "only what makes settings from a user's arguments reads it"
    monkeypatch.setenv(VARIABLE, "")
    assert settings_from(None).text == DEFAULT


def test_it_is_read_when_settings_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def norm(x: Tensor, w: Tensor) -> Tensor:
        return w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))

    monkeypatch.setenv(VARIABLE, OTHER)
    fused = kernelweld.fuse(norm, backend="eager")
    monkeypatch.delenv(VARIABLE)
    x, w = torch.randn(3, 32), torch.randn(32)
    with torch.no_grad():
        torch.testing.assert_close(fused(x, w), norm(x, w))
    (graph,) = kernelweld.report(fused).graphs
    assert (list(graph.seconds), graph.welds) == (OTHER.split(","), ())


@pytest.mark.parametrize(
    ("text", "error"), [("canonicalize,rase", UnknownName), ("canonicalize,,lower", BadPipeline)]
)
def test_mistakes_in_it_name_it(monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception]) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(error) as raised:
        settings_from(None)
    assert "  at the environment variable KERNELWELD_PIPELINE\n" in str(raised.value)


def test_verbs_take_it_but_for_a_pipeline_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "env_target.py").write_text(
        "import torch\ndef sin(): return torch.sin, (torch.ones(3),), {}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, OTHER)
    taken = OTHER.replace("lower", "lower{target=triton}")
    own = CliRunner().invoke(app, ["run", "env_target:sin"])
    assert own.stdout.startswith(f"# graph 1 of 1: {taken}\n")
    assert own.stderr == f"KERNELWELD_PIPELINE is set: {taken}\n"
    given = CliRunner().invoke(app, ["run", "-p", "raise", "env_target:sin"])
    assert given.stdout.startswith("# graph 1 of 1: raise\n")
    assert given.stderr == ""


# --- caches of compiled code ---


def test_the_pipeline_is_part_of_the_key() -> None:
    texts = (DEFAULT, OTHER, "plan,only-welds{ids=a.0},lower", "plan,only-welds{ids=a.1},lower")
    assert len({KernelweldPass(text).uuid() for text in texts}) == len(texts)


PASS = """
from dataclasses import dataclass
from kernelweld.passes.base import Pass, PassResult

@dataclass(frozen=True)
class IdlePass(Pass):
    name = "idle"

    def run(self, gm, context):
        return PassResult(modified=False)
"""


def test_a_pass_of_others_is_part_of_the_key_of_what_runs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, info = tmp_path / "idle_pass.py", tmp_path / "idle_pass-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: idle-pass\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kernelweld.passes]\nidle = idle_pass:IdlePass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = []
    try:
        for text in (PASS, PASS + "# another edition\n"):
            file.write_text(text)
            importlib.invalidate_caches()
            table.passes.cache_clear()
            offered._code.cache_clear()  # as in a new process
            sys.modules.pop("idle_pass", None)
            keys.append((KernelweldPass("idle,lower").uuid(), KernelweldPass("lower").uuid()))
    finally:
        monkeypatch.undo()
        table.passes.cache_clear()
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


@pytest.mark.slow
def test_no_pipeline_is_served_the_code_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inductor's caches on: the second function is the same and its pipeline is not."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "kernelweld"))
    args, welds = (torch.randn(3, 32), torch.randn(32)), []
    for text in (DEFAULT, OTHER, DEFAULT):
        monkeypatch.setenv(VARIABLE, text)

        def norm(x: Tensor, w: Tensor) -> Tensor:
            return w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))

        torch._dynamo.reset()
        fused = kernelweld.fuse(norm)
        with (
            torch.no_grad(),
            inductor_config.patch(fx_graph_cache=True),
            autograd_config.patch(enable_autograd_cache=True),
        ):
            fused(*args)
        welds.append([len(graph.welds) for graph in kernelweld.report(fused).graphs])
    assert welds == [[1], [0], [1]]


def test_a_pipeline_that_ends_with_words_leaves_the_model_as_it_was() -> None:
    def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    torch._dynamo.reset_code_caches()
    fused = kernelweld.fuse(norm, backend="eager", options={"pipeline": "canonicalize,raise"})
    inputs = torch.randn(3, 64), torch.randn(64)
    with torch.no_grad():
        assert torch.equal(fused(*inputs), norm(*inputs))
    (graph,) = kernelweld.report(fused).graphs
    assert graph.words == {"rms_norm": 1} and not graph.welds
