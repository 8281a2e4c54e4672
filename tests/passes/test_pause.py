"""The cyclic collector rests while passes run, and is as it was afterwards, whatever happened."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import fx

from kernelweld.passes.canonicalize.canonicalize_pass import CanonicalizePass
from kernelweld.passes.pause import paused_collector
from kernelweld.passes.pipeline import Pipeline


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()


def test_it_is_off_inside_and_on_again() -> None:
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="planted"), paused_collector():
        raise ValueError("planted")
    assert gc.isenabled()


def test_a_user_who_turned_it_off_keeps_it_off() -> None:
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()


def test_passes_run_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    original = CanonicalizePass.run

    def watched(self: CanonicalizePass, *args: object) -> object:
        seen.append(gc.isenabled())
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CanonicalizePass, "run", watched)
    gm = fx.symbolic_trace(lambda x: torch.ops.aten.neg.default(x))
    Pipeline.from_text("canonicalize", strict=True).run(gm)
    assert seen == [False]
    assert gc.isenabled()
