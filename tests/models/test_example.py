"""The example: one graph, all of whose chains are words."""

from __future__ import annotations

from collections import Counter

import torch

from kernelweld.integrations.aot import capture
from kernelweld.ir import word_of
from kernelweld.models.example import example
from kernelweld.models.parallel import Parallel
from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize import CanonicalizePass
from kernelweld.passes.dialect.dialect_pass import DialectPass
from kernelweld.passes.raise_words import RaisePass


def test_a_decode_step_is_one_graph_of_words() -> None:
    """Of a dense layer and one with experts, both with codes: 4 norms a layer and the last, 4 rotations, a
    write of 3 parts to latents and of 2 to keys, every quantization, and one router.
    """
    model, args, kwargs = example(batch=2, fp8=True)
    captured = capture(model, args, kwargs)
    assert captured.breaks == ()
    (gm,) = captured.graphs
    context = PassContext()
    for one in (CanonicalizePass(), DialectPass(), RaisePass()):
        one.run(gm, context)
    words = Counter(word.kind for node in gm.graph.nodes if (word := word_of(node)) is not None)
    assert words == {
        "rms_norm": 9,
        "residual_add": 4,
        "layer_norm": 2,
        "rope": 8,
        "rope_table": 1,
        "cache_write": 10,
        "gate_mul": 3,
        "quant": 16,
        "quant_scale": 16,
        "router_scores": 1,
        "expert_topk": 1,
    }
    assert context.near_misses == []


def test_real_dimensions_without_memory() -> None:
    model, args, kwargs = example(
        full=True, phase="prefill", batch=2, cache=65536, fp8=True, device="meta", parallel=Parallel(3, 8)
    )
    assert model.model.layers[1].self_attn.w_uk.shape == (16, 128, 512)
    assert model.model.layers[1].mlp.experts.down_proj.shape == (256, 7168, 256)
    assert args[2][0].latent.shape == (2 * (65536 + 128) // 64 + 1, 64, 656)
    assert model(*args, **kwargs).shape == (2, 129280)


def test_it_runs() -> None:
    """Values of a magnitude that neither vanishes nor grows, the same in every call."""
    first, second = (model(*args) for model, args, _ in (example(batch=3), example(batch=3)))
    assert torch.equal(first, second)
    assert 0.1 < first.float().std() < 10
