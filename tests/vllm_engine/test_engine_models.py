"""Other models in a real vLLM engine, compiled as its CPU platform compiles: one graph, no passes of vLLM."""

from __future__ import annotations

import pytest
from engine_runs import assert_welded, hook, run

pytestmark = pytest.mark.slow

MODELS = [
    "minimax_m2",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("qwen3", "qwen3_moe", "qwen3_next")),
]


@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_the_same_and_every_word_of_the_modules_is_read(engines, model: str) -> None:  # noqa: ANN001
    seen = engines([run("plain", model), run("hooked", model, **hook())])
    assert_welded(seen["plain"], seen["hooked"])
    assert len(seen["hooked"].pieces) == 1


@pytest.mark.nightly
def test_the_routing_of_minimax_m2_is_not_for_a_cpu(engines) -> None:  # noqa: ANN001
    """Without the hook: vLLM's router for CPUs knows softmax alone, so ``MODELS`` has that in its place."""
    scores = {"hf_overrides": {"scoring_func": "sigmoid"}}
    (seen,) = engines([run("sigmoid", "minimax_m2", enforce_eager=True, **scores)]).values()
    assert "cpu_router.py" in seen.log and 'assert self.scoring_func == "softmax"' in seen.log
    assert seen.error
