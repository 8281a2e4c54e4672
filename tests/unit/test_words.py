"""Every word against an independent formula, and its operator against its reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelweld.errors import BadOperand
from kernelweld.ir import (
    E2M1,
    E4M3,
    E8M0,
    WORDS,
    CacheWrite,
    ExpertTopK,
    GateMul,
    L2Norm,
    LayerNorm,
    MatVec,
    Pointwise,
    Quant,
    QuantScale,
    ResidualAdd,
    RMSNorm,
    Rope,
    RopeTable,
    RouterScores,
    RowReduce,
    Word,
    op_of,
    step_of,
    word_of,
)

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
aten = torch.ops.aten
EPS = 1e-6

Shapes = tuple[tuple[int, ...] | None, ...]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def exact(actual: object, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def normed(x: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + EPS)


# --- rms_norm: one test for each way models round and scale ---


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_rms_norm_that_rounds_then_scales(dtype: torch.dtype) -> None:
    x, w = torch.randn(3, 96).to(dtype), torch.randn(96).to(dtype)
    word = RMSNorm(EPS, normed_dtype=dtype, dtype=dtype)
    exact(word.reference(x, w, None), normed(x).to(dtype) * w)


def test_rms_norm_that_scales_then_rounds() -> None:
    x, w = torch.randn(3, 96).to(bf16), torch.randn(96).to(bf16)
    exact(RMSNorm(EPS, dtype=bf16).reference(x, w, None), (normed(x) * w).to(bf16))


def test_rms_norm_by_one_plus_weight() -> None:
    x, w = torch.randn(3, 96).to(bf16), torch.randn(96).to(bf16)
    word = RMSNorm(EPS, scale="1+w", dtype=bf16)
    exact(word.reference(x, w, None), (normed(x) * (1.0 + w.float())).to(bf16))


def test_rms_norm_gated_after_the_scale_rounds_there() -> None:
    x, w, gate = torch.randn(3, 96).to(bf16), torch.randn(96).to(bf16), torch.randn(3, 96).to(bf16)
    word = RMSNorm(EPS, gate="silu", normed_dtype=bf16, scaled_dtype=bf16, dtype=bf16)
    expected = ((normed(x).to(bf16) * w) * F.silu(gate.float())).to(bf16)
    torch.testing.assert_close(word.reference(x, w, gate), expected, rtol=2**-8, atol=0)


def test_rms_norm_gated_first_normalises_the_product() -> None:
    x, gate = torch.randn(3, 96), torch.randn(3, 96)
    word = RMSNorm(EPS, scale="none", gate="sigmoid", gate_first=True)
    exact(word.reference(x, None, gate), normed(x * torch.sigmoid(gate)))


def test_rms_norm_against_torch_in_float64() -> None:
    x, w = torch.randn(5, 33), torch.randn(33)
    expected = F.rms_norm(x.double(), (33,), w.double(), EPS).float()
    torch.testing.assert_close(RMSNorm(EPS).reference(x, w, None), expected, rtol=1e-6, atol=1e-6)


# --- layer_norm, l2_norm, residual_add, gate_mul ---


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_against_torch_in_float64(affine: bool) -> None:
    x, w, b = torch.randn(5, 33), torch.randn(33), torch.randn(33)
    w, b = (w, b) if affine else (None, None)
    expected = F.layer_norm(x.double(), (33,), *(t if t is None else t.double() for t in (w, b)), EPS).float()
    torch.testing.assert_close(LayerNorm(EPS).reference(x, w, b), expected, rtol=1e-6, atol=1e-6)


def test_layer_norm_rounds_where_its_fields_say() -> None:
    x, w, b = torch.randn(3, 64).to(bf16), torch.randn(64).to(bf16), torch.randn(64).to(bf16)
    n = LayerNorm(EPS).reference(x, None, None).to(bf16)
    word = LayerNorm(EPS, normed_dtype=bf16, scaled_dtype=bf16, dtype=bf16)
    exact(word.reference(x, w, b), n * w + b)


def test_l2_norm_with_eps_inside_the_root() -> None:
    x = torch.randn(3, 64).to(bf16)
    h = x.float()
    expected = (h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + EPS)).to(bf16)
    exact(L2Norm(EPS, dtype=bf16).reference(x), expected)


@pytest.mark.parametrize("eps", [1e-12, 100.0])
def test_l2_norm_with_eps_as_a_clamp_is_normalize(eps: float) -> None:
    x = torch.randn(3, 64)
    expected = F.normalize(x, eps=eps)
    torch.testing.assert_close(L2Norm(eps, "clamp").reference(x), expected, rtol=1e-6, atol=0)


def test_l2_norm_with_eps_outside_the_root() -> None:
    x = torch.randn(3, 64)
    expected = x / (x.norm(dim=-1, keepdim=True) + 0.5)
    torch.testing.assert_close(L2Norm(0.5, "outside").reference(x), expected, rtol=1e-6, atol=0)


def test_residual_add_rounds_once() -> None:
    x, y = torch.randn(3, 64), torch.randn(3, 64).to(bf16)
    exact(ResidualAdd(bf16).reference(x, y), (x + y.float()).to(bf16))


@pytest.mark.parametrize(
    ("act", "expected"),
    [("silu", F.silu), ("sigmoid", torch.sigmoid), ("gelu_tanh", lambda g: F.gelu(g, approximate="tanh"))],
)
def test_gate_mul_against_torch(act: str, expected: object) -> None:
    gate, up = torch.randn(3, 64), torch.randn(3, 64)
    word = GateMul(act)
    torch.testing.assert_close(word.reference(gate, up), expected(gate) * up, rtol=1e-5, atol=1e-6)


def test_gate_mul_rounds_the_activation_and_broadcasts_the_gate() -> None:
    gate, up = torch.randn(3, 1).to(bf16), torch.randn(3, 64).to(bf16)
    exact(GateMul("sigmoid", bf16, bf16).reference(gate, up), torch.sigmoid(gate.float()).to(bf16) * up)


# --- rope ---


def angles(rows: int, pairs: int) -> torch.Tensor:
    return torch.arange(rows)[:, None].float() * (10000.0 ** (-torch.arange(pairs) / pairs))


def complex_rope(pairs: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotation of ``[..., pair, 2]`` as a complex product."""
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned)


def test_rope_neox_is_rotate_half_bit_for_bit_in_bf16() -> None:
    x, angle = torch.randn(7, 64).to(bf16), angles(7, 32)
    cos, sin = (torch.cat([t, t], -1).to(bf16) for t in (angle.cos(), angle.sin()))
    rotated = torch.cat([-x[..., 32:], x[..., :32]], -1)
    word = Rope(64, product_dtype=bf16, dtype=bf16)
    exact(word.reference(x, cos, sin), x * cos + rotated * sin)


def test_rope_interleaved_is_a_complex_product() -> None:
    x, angle = torch.randn(7, 64), angles(7, 32)
    expected = complex_rope(x.unflatten(-1, (32, 2)), angle).flatten(-2)
    actual = Rope(64, style="interleaved", table="half").reference(x, angle.cos(), angle.sin())
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_rope_interleaved_in_and_halves_out() -> None:
    x, angle = torch.randn(7, 64), angles(7, 32)
    expected = complex_rope(x.unflatten(-1, (32, 2)), angle).transpose(-1, -2).flatten(-2)
    word = Rope(64, style="interleaved_to_halves", table="half")
    torch.testing.assert_close(word.reference(x, angle.cos(), angle.sin()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("table", ["halves", "pairs", "half"])
@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_rope_reads_every_table_layout_alike(style: str, table: str) -> None:
    x, angle = torch.randn(7, 64), angles(7, 32)
    spread = {
        "halves": lambda t: torch.cat([t, t], -1),
        "pairs": lambda t: t.repeat_interleave(2, -1),
        "half": lambda t: t,
    }[table]
    plain = Rope(64, style=style, table="half").reference(x, angle.cos(), angle.sin())
    exact(Rope(64, style=style, table=table).reference(x, spread(angle.cos()), spread(angle.sin())), plain)


@pytest.mark.parametrize("offset", [0, 16])
def test_partial_rope_leaves_the_rest(offset: int) -> None:
    x, angle = torch.randn(7, 64), angles(7, 8)
    y = Rope(16, offset, table="half").reference(x, angle.cos(), angle.sin())
    inner = Rope(16, table="half").reference(x[:, offset : offset + 16], angle.cos(), angle.sin())
    exact(y, torch.cat([x[:, :offset], inner, x[:, offset + 16 :]], -1))


def test_inverse_rope_undoes_rope() -> None:
    x, angle = torch.randn(7, 64), angles(7, 32)
    there = Rope(64, table="half").reference(x, angle.cos(), angle.sin())
    back = Rope(64, table="half", inverse=True).reference(there, angle.cos(), angle.sin())
    torch.testing.assert_close(back, x, rtol=1e-5, atol=1e-5)


# --- rope_table ---


def test_rope_table_from_frequencies() -> None:
    positions, inv_freq = torch.arange(5), torch.rand(8)
    cos, sin = RopeTable(scaling=1.25, dtype=bf16).reference(positions, inv_freq)
    angle = positions[:, None].float() * inv_freq
    exact(cos, (torch.cat([angle, angle], -1).cos() * 1.25).to(bf16))
    exact(sin, (torch.cat([angle, angle], -1).sin() * 1.25).to(bf16))


def test_rope_table_from_a_cache_in_pairs() -> None:
    positions, cache = torch.tensor([4, 0, 2]), torch.randn(6, 16)
    cos, sin = RopeTable(source="cache", layout="pairs").reference(positions, cache)
    exact(cos, cache[positions, :8].repeat_interleave(2, -1))
    exact(sin, cache[positions, 8:].repeat_interleave(2, -1))


@pytest.mark.parametrize(
    ("order", "rows"),
    [("plain", [0, 0, 0, 0, 1, 1, 2, 2]), ("interleaved", [0, 1, 2, 0, 1, 2, 0, 0])],
)
def test_rope_table_takes_each_frequency_from_its_section(order: str, rows: list[int]) -> None:
    positions, inv_freq = torch.randint(0, 100, (3, 2, 5)), torch.rand(8)
    word = RopeTable(layout="half", sections=(4, 2, 2), section_order=order)
    angle = positions[..., None].float() * inv_freq
    expected = torch.stack([angle[row, ..., i] for i, row in enumerate(rows)], -1)
    cos, sin = word.reference(positions, inv_freq)
    exact(cos, expected.cos())
    exact(sin, expected.sin())


# --- quantization ---


def test_quant_scale_and_quant_are_the_public_formulas() -> None:
    """As vLLM and DeepSeek write per-group quantization in torch."""
    x = torch.randn(3, 2, 128).to(bf16)
    amax = x.abs().amax(-1, keepdim=True).float().clamp(1e-4)
    scale = QuantScale(448.0, 1e-4, "amax").reference(x, None)
    exact(scale, amax / 448.0)
    codes = (x.float() / scale).to(torch.float8_e4m3fn)
    exact(Quant(-448.0, 448.0).reference(x, scale).float(), codes.float())


def test_quant_scale_in_ue8m0_is_the_next_power_of_two() -> None:
    x = torch.tensor([[3.0], [448.0], [448.0 * 4], [449.0], [0.0]])
    scale = QuantScale(448.0, format="ue8m0").reference(x, None)
    exact(scale[:, 0], torch.tensor([2.0**-7, 1.0, 4.0, 2.0, 0.0]))


def test_int8_codes_round_half_to_even_and_saturate() -> None:
    x = torch.tensor([[0.5, 1.5, -0.5, 2.5, 300.0, -300.0]])
    codes = Quant(-128.0, 127.0, dtype=torch.int8).reference(x, torch.ones(1))
    exact(codes, torch.tensor([[0, 2, 0, 2, 127, -128]], dtype=torch.int8))


NVFP4 = QuantScale(6.0, inverse_limit=True, format="e4m3", low=-448.0, high=448.0)


def test_nvfp4_is_the_public_formula() -> None:
    """As vLLM's reference writes it in torch, and its numbers in a table."""
    x, whole = torch.randn(3, 4, 16).to(bf16), torch.tensor([448.0 * 6.0 / 2.5])
    scale = NVFP4.reference(x, None, whole)
    amax = x.abs().amax(-1, keepdim=True).float()
    exact(scale, (whole * (amax * (1.0 / 6.0))).clamp(-448, 448).to(torch.float8_e4m3fn).float())
    exact(E4M3().reference(scale).float(), scale)
    y = (x.float() * (1.0 / (scale * (1.0 / whole)))).clamp(-6.0, 6.0)
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    numbers = torch.cat([numbers, -numbers])
    codes = E2M1().reference(x, scale, whole)
    found = torch.stack([numbers[codes.long() & 15], numbers[codes.long() >> 4]], -1).flatten(-2)
    nearest = (y[..., None] - numbers).abs().min(-1).values
    exact((found - y).abs(), nearest)


@pytest.mark.parametrize(
    ("zeros", "small"), [("signed", [8, 0, 8, 0]), ("negative", [8, 0, 0, 0]), ("plain", [0, 0, 0, 0])]
)
def test_e2m1_rounds_ties_to_even_codes_and_saturates(zeros: str, small: list[int]) -> None:
    word, one = E2M1("divide", 4, zeros), torch.ones(1)
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 1e9, -0.75, -9.0, float("nan"), float("-inf")]
    codes = [0, 2, 2, 4, 4, 6, 6, 7, 10, 15, 7, 15]
    for row, expected in ((ties[:4], codes[:4]), (ties[4:8], codes[4:8]), (ties[8:], codes[8:])):
        found = word.reference(torch.tensor([row]), one)
        exact(torch.stack([found & 15, found >> 4], -1).flatten(), torch.tensor(expected, dtype=torch.uint8))
    found = word.reference(torch.tensor([[-0.1, 0.1, -0.0, 0.0]]), one)
    exact(torch.stack([found & 15, found >> 4], -1).flatten(), torch.tensor(small, dtype=torch.uint8))


def test_a_scale_of_zero_gives_zeros() -> None:
    x, zero = torch.randn(2, 16).abs(), torch.zeros(2, 1)
    for whole in (0.0, 3.0):
        exact(E2M1().reference(x, zero, torch.tensor([whole])), torch.zeros(2, 8, dtype=torch.uint8))


# --- operators ---

# --- cache_write ---


def test_cache_writes_go_to_their_slots_and_nowhere_else() -> None:
    cache, rows = torch.randn(5, 4, 2, 8), torch.randn(3, 2, 8)
    slots = torch.tensor([7, 0, 19])
    for dims, laid in (((0, 1), cache), ((0, 2), cache.transpose(1, 2).contiguous())):
        expected = laid.clone()
        for slot, row in zip(slots.tolist(), rows, strict=True):
            block = expected[slot // 4]
            (block if dims == (0, 1) else block.transpose(0, 1))[slot % 4] = row
        for negative in ("end", "nowhere"):
            word = CacheWrite(dims, negative=negative)
            exact(word.reference(laid, rows, slots, None), expected)
            exact(word.reference(laid, rows, slots // 4, slots % 4), expected)


def test_a_negative_slot_is_counted_from_the_end_or_writes_nothing() -> None:
    cache, rows, slots = torch.randn(5, 4, 8), torch.randn(2, 8), torch.tensor([-1, 3])
    written = cache.clone()
    written[0, 3] = rows[1]
    exact(CacheWrite((0, 1), negative="nowhere").reference(cache, rows, slots, None), written)
    written[4, 3] = rows[0]
    exact(CacheWrite((0, 1)).reference(cache, rows, slots, None), written)


def test_a_static_cache_is_written_at_a_position() -> None:
    cache, rows, position = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 1, 8), torch.tensor([4])
    exact(
        CacheWrite((2,), place=2).reference(cache, rows, position, None),
        cache.index_copy(2, position, rows),
    )


def test_a_part_is_written_and_the_whole_returned() -> None:
    rows, slots = torch.randn(8, 3, 8), torch.tensor([4, 0, 2])
    whole = torch.randn(12, 2, 9, 10)[2:7, :, 1:, 1:9].transpose(
        0, 2
    )  # [8, 2, 5, 8], with gaps, at an offset
    expected = whole.clone()
    expected[:, 1, slots] = rows
    found = CacheWrite((1,), place=1).reference(whole[:, 1], rows, slots, None, whole)
    assert found.stride() == whole.stride()
    exact(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, bf16, torch.float8_e4m3fn])
def test_values_are_written_as_bytes(dtype: torch.dtype) -> None:
    pages = torch.randint(0, 255, (4, 3, 40)).to(torch.uint8)
    value, slots = torch.randn(2, 4).to(dtype), torch.tensor([7, 2])
    width, expected = 4 * dtype.itemsize, pages.clone()
    for slot, row in zip(slots.tolist(), value, strict=True):
        expected[slot // 3, slot % 3, 8 : 8 + width] = row.view(torch.uint8)
    part = pages[..., 8 : 8 + width]
    for cache in (part, part.view(dtype)):
        exact(CacheWrite((0, 1)).reference(cache, value, slots, None, pages), expected)


EXAMPLES: list[tuple[Word, Shapes]] = [
    (RMSNorm(EPS, normed_dtype=bf16, dtype=bf16), ((3, 2, 64), (64,), None)),
    (RMSNorm(EPS, gate="silu"), ((3, 64), (64,), (3, 64))),
    (LayerNorm(EPS, dtype=f16), ((3, 64), (64,), (64,))),
    (L2Norm(EPS, "clamp", bf16, bf16), ((0, 64),)),
    (MatVec(dtype=bf16), ((5, 64), (1, 64))),
    (MatVec(transposed=True), ((3, 64, 5), (3, 1, 64))),
    (ResidualAdd(bf16), ((3, 64), (3, 64))),
    (Rope(16, 8, dtype=bf16), ((3, 64), (3, 16), (3, 16))),
    (RopeTable(sections=(3, 3, 2), section_order="interleaved"), ((3, 2, 5), (8,))),
    (GateMul("gelu_tanh", dtype=f16), ((3, 64), (3, 64))),
    (QuantScale(448.0, 1e-10, "amax", format="ue8m0"), ((3, 2, 64), (1,))),
    (
        QuantScale(256.0, format="ue8m0_floor", low=2.0**-127, high=2.0**127, keepdim=False),
        ((3, 2, 32), None),
    ),
    (E8M0(), ((3, 8),)),
    (NVFP4, ((3, 2, 16), None, (1,))),
    (E4M3(), ((3, 8),)),
    (E2M1(), ((3, 64), (3, 4, 1), (1,))),
    (E2M1("divide", 32, "plain"), ((3, 64), (6,), None)),
    (Quant(-128.0, 127.0, dtype=torch.int8), ((3, 64), (3, 1))),
    (Quant(-448.0, 448.0, number=0.3), ((3, 64), None)),
    (CacheWrite((0, 2), negative="nowhere"), ((5, 2, 4, 8), (3, 2, 8), (3,), None, None)),
    (RouterScores("softmax", bf16), ((3, 64), (8, 64))),
    (ExpertTopK(3, groups=4, top_groups=2, scale=2.5), ((3, 8), (8,))),
]


def operands(word: Word, shapes: Shapes) -> list[torch.Tensor | None]:
    tensors = [None if shape is None else torch.randn(shape) for shape in shapes]
    if isinstance(word, CacheWrite):
        tensors[2:] = [None if index is None else index.long() for index in tensors[2:]]
    return tensors


CALLS: list[tuple[Word, tuple[torch.Tensor | None, ...], str]] = [
    (
        Quant(-448.0, 448.0),
        (torch.zeros(3, 64), torch.ones(3, 1).to(bf16)),
        "does not take bfloat16 as 'scale'",
    ),
    (Quant(-448.0, 448.0), (torch.zeros(3, 64), torch.ones(3, 2)), "shape [3, 2] as 'scale'"),
    (Quant(-448.0, 448.0), (torch.zeros(3, 64).int(), torch.ones(3, 1)), "does not take int32 as 'x'"),
    (Quant(-448.0, 448.0), (torch.zeros(3, 64), None), "does not take None as 'scale'"),
    (QuantScale(448.0), (torch.zeros(3, 64), torch.ones(2)), "shape [2] as 'upper'"),
    (NVFP4, (torch.zeros(3, 16), None, torch.ones(3)), "shape [3] as 'tensor_scale'"),
    (NVFP4, (torch.zeros(3, 16), None, torch.ones(1).to(bf16)), "does not take bfloat16 as 'tensor_scale'"),
    (E4M3(), (torch.zeros(3, 1).to(bf16),), "does not take bfloat16 as 'scale'"),
    (E2M1(), (torch.zeros(3, 40), torch.ones(3, 2), torch.ones(1)), "shape [3, 40] as 'x'"),
    (E2M1("divide", 5), (torch.zeros(3, 10), torch.ones(3, 2)), "shape [3, 10] as 'x'"),
    (E2M1(), (torch.zeros(3, 32).int(), torch.ones(3, 2), torch.ones(1)), "does not take int32 as 'x'"),
    (E2M1(), (torch.zeros(3, 32), torch.ones(3, 3), torch.ones(1)), "shape [3, 3] as 'scale'"),
    (E2M1(), (torch.zeros(3, 32), torch.ones(3, 2).half(), torch.ones(1)), "float16 as 'scale'"),
    (E2M1(), (torch.zeros(3, 32), torch.ones(3, 2), None), "does not take None as 'tensor_scale'"),
    (E2M1("divide"), (torch.zeros(3, 32), torch.ones(3, 2), torch.ones(1)), "a tensor as 'tensor_scale'"),
    (E2M1(), (torch.zeros(3, 32), torch.ones(3, 2), torch.ones(2)), "shape [2] as 'tensor_scale'"),
    (
        CacheWrite((0,)),
        (torch.zeros(9, 8), torch.zeros(3, 8).half(), torch.arange(3), None, None),
        "float16 as 'value'",
    ),
    (
        CacheWrite((0,)),
        (torch.zeros(9, 8), torch.zeros(3, 4), torch.arange(3), None, None),
        "shape [3, 4] as 'value'",
    ),
    (
        CacheWrite((0,)),
        (torch.zeros(9, 8), torch.zeros(3, 8), torch.rand(3), None, None),
        "float32 as 'index'",
    ),
    (
        CacheWrite((0, 3)),
        (torch.zeros(9, 8), torch.zeros(3, 8), torch.arange(3), None, None),
        "2 dimensions as 'cache'",
    ),
    (
        CacheWrite((0, 1)),
        (torch.zeros(9, 4, 8), torch.zeros(3, 8), torch.arange(3), torch.arange(2), None),
        "shape [2] as 'index2'",
    ),
    (
        CacheWrite((0,)),
        (torch.zeros(9, 8).byte(), torch.zeros(3, 4), torch.arange(3), None, None),
        "shape [3, 16] as 'value'",
    ),
    (
        CacheWrite((0,)),
        (torch.zeros(9, 8), torch.zeros(3, 8), torch.arange(3), None, torch.zeros(2, 9, 8)),
        "does not take another tensor as 'whole'",
    ),
]


@pytest.mark.parametrize(("word", "tensors", "message"), CALLS, ids=[message for *_, message in CALLS])
def test_operands_that_a_word_does_not_take(
    word: Word, tensors: tuple[torch.Tensor | None, ...], message: str
) -> None:
    with pytest.raises(BadOperand) as raised:
        op_of(word)(*tensors, **word.static())
    assert message in str(raised.value) and "how to proceed: Give " in str(raised.value)


def ids(example: object) -> str:
    return str(example) if isinstance(example, Word) else ""


def test_the_examples_cover_the_vocabulary() -> None:
    assert {type(word) for word, _ in EXAMPLES} == set(WORDS)


@pytest.mark.parametrize(("word", "shapes"), EXAMPLES, ids=ids)
def test_the_operator_runs_the_reference(word: Word, shapes: Shapes) -> None:
    tensors = operands(word, shapes)
    torch.testing.assert_close(
        op_of(word)(*tensors, **word.static()), word.reference(*tensors), rtol=0, atol=0
    )


@pytest.mark.parametrize(("word", "shapes"), EXAMPLES, ids=ids)
def test_the_fake_operator_has_the_real_shapes_and_dtypes(word: Word, shapes: Shapes) -> None:
    def run() -> object:
        return op_of(word)(*operands(word, shapes), **word.static())

    real = run()
    with FakeTensorMode():
        fake = run()
    pairs = zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (fake, real)), strict=True)
    assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)


@pytest.mark.parametrize(("word", "shapes"), EXAMPLES, ids=ids)
def test_a_word_survives_the_graph(word: Word, shapes: Shapes) -> None:
    graph = fx.Graph()
    operands = [None if shape is None else graph.placeholder(f"x{i}") for i, shape in enumerate(shapes)]
    node = graph.call_function(op_of(word), tuple(operands), dict(word.static()))
    assert word_of(node) == word
    assert step_of(node) == (word if word.is_row else None)
    assert str(word).startswith(f"{word.kind}{{" if word.static() else word.kind)


def test_a_word_class_without_a_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="must define `kind`"):
        type("Nameless", (Word,), {"operands": ("x",)})


def call(target: object, *args: object) -> fx.Node:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3, 64)
    return graph.call_function(target, (x, *args))


def test_nameless_operations_are_steps_too() -> None:
    assert step_of(call(aten.mul.Tensor, 2.0)) == Pointwise("mul")
    assert step_of(call(aten.sum.dim_IntList, [-1], True)) == RowReduce("sum", True)
    assert step_of(call(aten.mean.dim, [2])) == RowReduce("mean", False)
    assert word_of(call(aten.mul.Tensor, 2.0)) is None


@pytest.mark.parametrize(
    "node",
    [call(aten.sum.dim_IntList, [0]), call(aten.sum.dim_IntList, [1, 2]), call(aten.sort.default)],
    ids=str,
)
def test_other_operations_are_no_steps(node: fx.Node) -> None:
    assert step_of(node) is None
    assert step_of(node.all_input_nodes[0]) is None
