"""Chains of vLLM's operators become one launch and compute the same, for any number of tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import E4M3, WEIGHED, bf16, close, graph_of, rand
from torch import Tensor, nn

EPS, LIMIT = 1e-6, 448.0
T, N, GROUP, D, HEADS, KV_HEADS = 5, 256, 128, 16, 4, 2


class NormAndQuant(nn.Module):
    """What stands before a linear layer of a model in fp8: a residual sum, its norm, codes a group."""

    def __init__(self, ue8m0: bool = False) -> None:
        super().__init__()
        self.weight, self.ue8m0 = nn.Parameter(rand(N)), ue8m0

    def forward(self, x: Tensor, projection: Tensor) -> tuple[Tensor, ...]:
        both = x @ projection
        hidden, residual = both[:, :N].contiguous(), both[:, N:].contiguous()
        torch.ops._C.fused_add_rms_norm(hidden, residual, self.weight, EPS)
        codes = torch.empty(hidden.shape, dtype=E4M3)
        scales = torch.empty(hidden.shape[0], hidden.shape[1] // GROUP)
        how = (GROUP, 1e-10, -LIMIT, LIMIT, self.ue8m0, False, False)
        torch.ops._C.per_token_group_fp8_quant(hidden, codes, scales, *how)
        return codes, scales, hidden, residual


class Attention(nn.Module):
    """Projections to the caches: norms a head, rotation, keys and values to their slots."""

    def __init__(self, is_neox: bool, rotary_dim: int, normed: bool) -> None:
        super().__init__()
        self.q_weight, self.k_weight = nn.Parameter(rand(D)), nn.Parameter(rand(D))
        self.register_buffer("cache", rand(9, rotary_dim))
        self.register_buffer("one", torch.ones(()))
        self.is_neox, self.normed = is_neox, normed

    def head_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, D))
        out = torch.empty(heads.shape, dtype=x.dtype)
        torch.ops._C.rms_norm(out, heads, weight, EPS)
        return out.flatten(-2)

    def forward(
        self, x: Tensor, projection: Tensor, positions: Tensor, slots: Tensor, ks: Tensor, vs: Tensor
    ) -> Tensor:
        q, k, v = (x @ projection).split([HEADS * D, KV_HEADS * D, KV_HEADS * D], -1)
        if self.normed:
            q, k = self.head_norm(q, self.q_weight), self.head_norm(k, self.k_weight)
        torch.ops._C.rotary_embedding(positions, q, k, D, self.cache, self.is_neox)
        rows = [x.view(-1, KV_HEADS, D) for x in (k, v)]
        torch.ops._C_cache_ops.reshape_and_cache_flash(*rows, ks, vs, slots, "auto", self.one, self.one)
        return q.reshape(-1, HEADS, D) * 2.0


def attention_inputs() -> list[Tensor]:
    caches = [rand(7, 4, KV_HEADS, D) for _ in range(2)]
    projection = rand(32, (HEADS + 2 * KV_HEADS) * D)
    return [rand(T, 32), projection, torch.tensor([7, 0, 3, 3, 8]), torch.tensor([27, -1, 9, 0, 14]), *caches]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dynamic", [(), (0,)], ids=["static", "symbolic"])
@pytest.mark.parametrize("ue8m0", [False, True], ids=["float32", "ue8m0"])
def test_residual_norm_and_codes_are_one_launch(ue8m0: bool, dynamic: tuple[int, ...]) -> None:
    graph = graph_of(NormAndQuant(ue8m0), [rand(T, 32), rand(32, 2 * N)], dynamic=dynamic)
    expected = graph.run()
    result = graph.passed(WEIGHED)
    assert result.context.plan is not None
    assert [weld.name for weld in result.context.plan.welds] == ["residual_add_rms_norm_quant_scale_quant"]
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)


@pytest.mark.parametrize("normed", [True, False], ids=["norms", "no norms"])
@pytest.mark.parametrize(("is_neox", "rotary_dim"), [(True, D), (False, D), (True, 8)])
def test_attention_up_to_its_caches_is_one_launch(is_neox: bool, rotary_dim: int, normed: bool) -> None:
    """Without norms the rotation is of parts of the projections, which a functional graph writes back."""
    graph = graph_of(Attention(is_neox, rotary_dim, normed), attention_inputs())
    expected = graph.run()
    result = graph.passed(WEIGHED)
    assert result.context.plan is not None
    norm = "rms_norm_" if normed else ""
    name = f"{norm}rope__{norm}rope_cache_write__cache_write"
    assert [weld.name for weld in result.context.plan.welds] == [name]
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)


class Latents(nn.Module):
    """A latent attention up to its cache: norm of the latent, rotation of the part beside it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = nn.Parameter(rand(512)), kind
        self.register_buffer("table", rand(9, 64))
        self.register_buffer("scale", torch.tensor([0.02]))

    def forward(self, x: Tensor, positions: Tensor, slots: Tensor, cache: Tensor) -> None:
        torch._check(x.shape[0] == slots.shape[0])
        torch._check(x.shape[0] == positions.shape[0])
        latent, rotated = x.split([512, 64], -1)
        normed, rotated = torch.empty(latent.shape, dtype=x.dtype), rotated.contiguous()
        torch.ops._C.rms_norm(normed, latent, self.weight, EPS)
        torch.ops._C.rotary_embedding(positions, rotated, None, 64, self.table, False)
        torch.ops._C_cache_ops.concat_and_cache_mla(normed, rotated, cache, slots, self.kind, self.scale)


@pytest.mark.parametrize("dynamic", [(), (0, 1, 2)], ids=["static", "symbolic"])
@pytest.mark.parametrize(("kind", "width"), [("auto", 576), ("fp8", 576), ("fp8_ds_mla", 656)])
def test_a_latent_is_normed_rotated_and_written_in_one_launch(
    kind: str, width: int, dynamic: tuple[int, ...]
) -> None:
    cache = rand(7, 4, width) if kind == "auto" else torch.randint(0, 255, (7, 4, width), dtype=torch.uint8)
    slots = torch.tensor([27, -1, 9, 0, 14])
    graph = graph_of(
        Latents(kind), [rand(T, 576), torch.tensor([7, 0, 3, 3, 8]), slots, cache], dynamic=dynamic
    )
    expected = graph.run()
    result = graph.passed(WEIGHED)
    assert result.context.plan is not None and len(result.context.plan.welds) == 1
    assert graph.kernels == 1 and graph.operators == []
    found = graph.run()
    assert close(found, expected) if kind == "auto" else close_bytes(found, expected)


def close_bytes(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether rows of codes, of 656 bytes also of scales and values, differ by one unit of a code at most."""
    (a,), (b,) = ([x for x in given if x.dtype == torch.uint8] for given in (found, expected))
    parts = [(0, 512, E4M3), (512, 528, torch.float32), (528, 656, bf16)]
    parts = parts if a.shape[-1] == 656 else [(0, 576, E4M3)]
    views = [[x[..., i:j].clone().view(dtype).float() for i, j, dtype in parts] for x in (a, b)]
    return all(torch.allclose(x, y, rtol=0.13, atol=0, equal_nan=True) for x, y in zip(*views, strict=True))


def test_keys_and_values_of_one_tensor_are_written_by_the_launch_of_the_rotation() -> None:
    class Halves(Attention):
        def forward(  # type: ignore[override]
            self, x: Tensor, projection: Tensor, positions: Tensor, slots: Tensor, kv: Tensor
        ) -> Tensor:
            return super().forward(x, projection, positions, slots, *kv.unbind(0))

    inputs = attention_inputs()
    graph = graph_of(Halves(True, D, True), [*inputs[:4], torch.stack(inputs[4:])])
    expected = graph.run()
    result = graph.passed(WEIGHED)
    assert result.context.plan is not None
    assert [w.name for w in result.context.plan.welds] == [
        "rms_norm_rope__rms_norm_rope_cache_write__cache_write"
    ]
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)


def test_without_kernels_words_are_inlined_and_caches_written_by_their_operator() -> None:
    graph = graph_of(Attention(True, D, True), attention_inputs())
    expected = graph.run()
    result = graph.passed("canonicalize,dialect,raise,plan,lower{target=reference}")
    assert result.context.plan is not None and len(result.context.plan.welds) == 1
    assert graph.kernels == 0 and graph.words == []
    assert graph.operators == ["_C_cache_ops.reshape_and_cache_flash.default"]
    assert close(graph.run(), expected)


def test_gate_and_codes_are_one_launch() -> None:
    def chain(x: Tensor, projection: Tensor, scale: Tensor) -> Tensor:
        both = x @ projection
        gated, codes = torch.empty(T, N, dtype=bf16), torch.empty(T, N, dtype=E4M3)
        torch.ops._C.silu_and_mul(gated, both)
        torch.ops._C.static_scaled_fp8_quant(codes, gated, scale, None)
        return codes

    graph = graph_of(chain, [rand(T, 32), rand(32, 2 * N), torch.tensor([0.02])])
    expected = graph.run()
    graph.passed(WEIGHED)
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)


def add_in_aten(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    out = torch.empty_like(total)
    torch.ops._C.rms_norm(out, total, weight, EPS)
    return out, total


def quant_in_aten(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, EPS)
    scale = out.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / LIMIT
    return (out.float() / scale).clamp(-LIMIT, LIMIT).to(E4M3), scale


@pytest.mark.parametrize(
    ("chain", "name"),
    [(add_in_aten, "residual_add_rms_norm"), (quant_in_aten, "rms_norm_quant_scale_quant")],
    ids=["add", "quant"],
)
def test_operators_and_decomposed_nodes_share_a_launch(chain: Callable[..., object], name: str) -> None:
    graph = graph_of(chain, [rand(T, N), rand(T, N), rand(N)])
    expected = graph.run()
    result = graph.passed(WEIGHED)
    assert result.context.plan is not None
    assert [weld.name for weld in result.context.plan.welds] == [name]
    assert close(graph.run(), expected)


def test_layers_look_their_tables_up_once() -> None:
    def layers(positions: Tensor, x: Tensor, cache: Tensor) -> Tensor:
        for _ in range(3):
            x = x * 2
            torch.ops._C.rotary_embedding(positions, x, None, D, cache, True)
        return x

    graph = graph_of(layers, [torch.arange(T), rand(T, HEADS * D), rand(9, D)])
    expected = graph.run()
    result = graph.passed("canonicalize,dialect,raise,plan{keep-all=true}")
    assert result.context.plan is not None
    assert dict(result.context.plan.words) == {"rope": 3, "rope_table": 1}
    assert close(graph.run(), expected)
