"""Qwen3 in a real vLLM engine: with and without the hook, from vLLM's compile cache, by vLLM's transformers
backend, and where there is nothing to weld.

Compilation is in vLLM's own mode, as on a GPU (``engines.keep_mode``): pieces between attention, behind
vLLM's own passes, with artefacts kept.
"""

from __future__ import annotations

import re

import pytest
from engine_runs import assert_read, assert_welded, hook, run, welds, words

pytestmark = pytest.mark.slow

#: One process for all of them: its imports cost more than an engine that compiles nothing.
STARTS = [
    run("plain", "qwen3", keep_mode=True),
    run("cold", "qwen3", keep_mode=True, **hook()),
    run("warm", "qwen3", keep_mode=True, **hook()),
    run("transformers", "qwen3", keep_mode=True, model_impl="transformers", **hook()),
    run("eager", "qwen3", enforce_eager=True, **hook("kernelweld.integrations.vllm.vllm_pass")),
    run("uncompiled", "qwen3", **hook(mode=0)),
    run("option", "qwen3", env={"KERNELWELD_OPTIONS": '{"max_token": 256}'}, **hook()),
    run("sparse", "deepseek_v32"),
]


def test_tokens_are_the_same_and_every_word_of_the_modules_is_read(engines) -> None:  # noqa: ANN001
    seen = engines(STARTS)
    assert_welded(seen["plain"], seen["cold"])
    first, middle, last = seen["cold"].pieces
    assert {piece["tokens"] for piece in (first, middle, last)} == {"1..512"}
    assert seen["cold"].lines[0].startswith("piece 1, 1..512 tokens: 1 weld (")


def test_a_second_start_loads_what_was_welded_and_no_pass_runs(engines) -> None:  # noqa: ANN001
    seen = engines(STARTS)
    cold, warm = seen["cold"], seen["warm"]
    assert (cold.loaded, warm.loaded) == (0, 1)
    assert warm.error == "" and warm.pieces == []
    (line,) = warm.lines
    assert line == cold.summaries[0].replace("active:", "active, from vLLM's compile cache:")
    assert warm.tokens == cold.tokens


def test_the_transformers_backend_gets_the_same_welds(engines) -> None:  # noqa: ANN001
    seen = engines(STARTS)
    own, other = seen["cold"], seen["transformers"]
    assert_read(other)
    assert other.expected == own.expected
    assert welds(other.pieces) == welds(own.pieces)
    for kind in ("rms_norm", "rope", "gate_mul", "residual_add"):
        assert words(other.pieces)[kind] == words(own.pieces)[kind]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("eager", "enforce_eager is on, so vLLM compiles nothing; start it without --enforce-eager"),
        (
            "uncompiled",
            "vLLM runs Qwen3ForCausalLM with compilation mode NONE, so it compiles nothing; start it with "
            "mode 3, if the model can be compiled at all",
        ),
    ],
)
def test_where_nothing_is_compiled_one_line_says_why(engines, name: str, reason: str) -> None:  # noqa: ANN001
    seen = engines(STARTS)[name]
    assert seen.error == "" and len(seen.tokens) == 16
    assert seen.lines == [f"inactive: {reason}"]


def test_a_wrong_option_stops_the_start_and_says_which(engines) -> None:  # noqa: ANN001
    assert engines(STARTS)["option"].error == (
        "UnknownName: unknown option 'max_token'; did you mean 'max_tokens'?\n"
        "  at the environment variable KERNELWELD_OPTIONS\n"
        "  how to proceed: Use one of: enabled, pipeline, without, max_tokens, verify, strict, tuned, "
        "untested_vllm."
    )


def test_deepseek_v32_is_no_model_for_a_cpu(engines) -> None:  # noqa: ANN001
    """Without the hook: when vLLM learns it, it belongs among the other models."""
    assert engines(STARTS)["sparse"].error == "NotImplementedError: Sparse Attention is not supported on CPU."


# --- in the nightly run ---


@pytest.mark.nightly
def test_tokens_of_the_transformers_backend_are_the_same(engines) -> None:  # noqa: ANN001
    """Inductor rounds where the model does, to bfloat16 before the weight of a norm: by itself it leaves
    out what it fuses, and then neither start writes what the model writes without a compiler.
    """
    rounding = {"inductor_compile_config": {"emulate_precision_casts": True}}
    backend = {"keep_mode": True, "model_impl": "transformers"}
    seen = engines(
        [
            run("plain", "qwen3", **backend, compilation_config=rounding),
            run("hooked", "qwen3", **backend, **hook(**rounding)),
            run("eager", "qwen3", model_impl="transformers", enforce_eager=True),
        ]
    )
    assert_welded(seen["plain"], seen["hooked"])
    assert seen["hooked"].tokens == seen["eager"].tokens


@pytest.mark.nightly
def test_nothing_welded_is_never_called_active(engines) -> None:  # noqa: ANN001
    options = {"KERNELWELD_OPTIONS": '{"pipeline": "canonicalize,dialect,raise,lower"}'}
    (seen,) = engines([run("unplanned", "qwen3", env=options, **hook())]).values()
    assert seen.error == "" and [piece["welds"] for piece in seen.pieces] == [[]]
    (summary,) = seen.summaries
    assert summary.startswith("inactive: 1 graph compiled, and nothing was welded (")


@pytest.mark.nightly
def test_two_workers_agree_on_the_artefacts(engines) -> None:  # noqa: ANN001
    """Two workers and the engine, each a process that vLLM starts: the form that its users run."""
    both = {"keep_mode": True, "tensor_parallel_size": 2, "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}
    seen = engines([run("plain", "qwen3", **both), run("hooked", "qwen3", **both, **hook())])
    plain, hooked = seen["plain"], seen["hooked"]
    assert (plain.error, hooked.error) == ("", "") and plain.lines == []
    assert hooked.tokens == plain.tokens
    one, other = hooked.summaries
    assert one == other and one.startswith("active: ")
    saved = re.findall(r"saved AOT compiled function to \S+/(\w+)/rank_(\d)_0/", hooked.log)
    (key,) = {key for key, _ in saved}
    assert sorted(saved) == [(key, "0"), (key, "1")]
