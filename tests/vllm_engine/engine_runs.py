"""Runs of engines as tests ask for them, and what is true of every pair of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

KEY = "post_grad_custom_post_pass"


def hook(path: str = "kernelweld.vllm_pass", **compilation: object) -> dict[str, Any]:
    """Arguments of ``LLM`` with the hook, named by ``path``."""
    return {"compilation_config": {"inductor_passes": {KEY: path}, **compilation}}


def run(name: str, model: str, *, keep_mode: bool = False, env: Any = None, **llm: Any) -> dict[str, Any]:
    """One run of ``engines.py``."""
    return {"name": name, "model": model, "keep_mode": keep_mode, "env": env or {}, "llm": llm}


def words(pieces: Any) -> Counter[str]:
    """Those of all pieces."""
    total: Counter[str] = Counter()
    for piece in pieces:
        total.update(piece["words"])
    return total


def welds(pieces: Any) -> Counter[str]:
    """How many there are of each kind in all pieces."""
    return Counter(weld for piece in pieces for weld in piece["welds"])


def assert_welded(plain: Any, hooked: Any) -> None:
    """The same tokens as without the hook, and what ``assert_read`` says."""
    assert (plain.error, hooked.error) == ("", "")
    assert plain.lines == [] and plain.pieces == []
    assert len(plain.tokens) == 16 and {len(tokens) for tokens in plain.tokens} == {32}
    assert len({tuple(tokens) for tokens in plain.tokens}) > 8, "the model says something"
    assert hooked.tokens == plain.tokens
    assert_read(hooked)


def assert_read(hooked: Any) -> None:
    """Every norm, rotation and gate of the modules was read, some are welded, and the log says so."""
    assert hooked.error == ""
    raised = words(hooked.pieces)
    assert {kind: raised[kind] for kind in hooked.expected} == hooked.expected
    count = welds(hooked.pieces).total()
    assert count > 0
    (summary,) = hooked.summaries
    assert summary.startswith(f"active: {count} weld{'' if count == 1 else 's'} in ")
    for kind, number in raised.items():
        assert f"{number} {kind}" in summary
