"""Every word against its reference: drawn widths, rows, strides and dtypes, in the interpreter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.ir import GateMul, L2Norm, LayerNorm, ResidualAdd, RMSNorm, Rope, RopeTable, Word

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = (bf16, f16, f32)

quick = settings(settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "codegen")))
dtypes = st.sampled_from(DTYPES)
rows = st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple)
widths = st.one_of(st.integers(1, 300), st.integers(1, 8192), st.sampled_from([64, 128, 576, 1536, 7168]))
layouts = st.sampled_from(["contiguous", "sliced", "every_second", "transposed"])
seeds = st.integers(0, 2**16)

#: Slack in float32 for words with an exp: the interpreter's is numpy's (up to 2.5 ulp off), torch's is
#: within 1.
EXP_SLACK = 2.5


def tensor(
    shape: Sequence[int], dtype: torch.dtype, layout: str = "contiguous", scale: float = 1.0
) -> torch.Tensor:
    """Random values of ``shape`` laid out as asked."""
    *leading, width = shape
    if layout == "sliced":
        return (torch.randn(*leading, width + 5) * scale).to(dtype)[..., 2 : width + 2]
    if layout == "every_second":
        return (torch.randn(*leading, 2 * width) * scale).to(dtype)[..., ::2]
    if layout == "transposed" and len(shape) > 1:
        return (torch.randn(*leading[:-1], width, leading[-1]) * scale).to(dtype).transpose(-1, -2)
    return (torch.randn(*shape) * scale).to(dtype)


def weight(width: int, dtype: torch.dtype, wide: bool) -> torch.Tensor:
    return (torch.randn(width) * 0.3 + 1).to(f32 if wide else dtype)


RMS = {
    "plain": {"scale": "none"},
    "round then scale": {"round": "normed"},
    "scale then round": {},
    "one plus w": {"scale": "1+w"},
    "silu gate after": {"gate": "silu", "round": "normed"},
    "silu gate after, scaled rounded": {"gate": "silu", "round": "scaled"},
    "sigmoid gate first": {"gate": "sigmoid", "gate_first": True},
}


@pytest.mark.parametrize("variant", RMS)
@quick
@given(rows=rows, width=widths, dtype=dtypes, layout=layouts, wide=st.booleans(), seed=seeds)
def test_rms_norm(
    lab: Any, variant: str, rows: Any, width: int, dtype: Any, layout: str, wide: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    options = dict(RMS[variant])
    stage = options.pop("round", None)
    rounding = {f"{stage}_dtype": dtype} if stage else {}
    word = RMSNorm(1e-6, **options, **rounding, dtype=dtype)
    operands = [
        tensor((*rows, width), dtype, layout),
        None if word.scale == "none" else weight(width, dtype, wide),
        None if word.gate == "none" else tensor((*rows, width), dtype),
    ]
    (actual,) = lab.word(word, operands, [(*rows, width)])
    gated_f32 = word.gate != "none" and dtype == f32
    lab.hold(actual, lambda: word.reference(*operands), slack=EXP_SLACK if gated_f32 else 1.0)


@pytest.mark.filterwarnings("ignore:var_mean.*degrees of freedom")
@pytest.mark.parametrize("affine", ["none", "weight", "both"])
@quick
@given(rows=rows, width=widths, dtype=dtypes, layout=layouts, stages=st.booleans(), seed=seeds)
def test_layer_norm(
    lab: Any, affine: str, rows: Any, width: int, dtype: Any, layout: str, stages: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    word = LayerNorm(
        1e-5, normed_dtype=dtype if stages else f32, scaled_dtype=dtype if stages else f32, dtype=dtype
    )
    x = tensor((*rows, width), dtype, layout) + 1
    operands = [
        x,
        None if affine == "none" else weight(width, dtype, False),
        weight(width, dtype, False) if affine == "both" else None,
    ]
    (actual,) = lab.word(word, operands, [(*rows, width)])
    lab.hold(actual, lambda: word.reference(*operands))


@pytest.mark.parametrize("place", ["inside", "outside", "clamp"])
@quick
@given(rows=rows, width=widths, dtype=dtypes, layout=layouts, rounds=st.booleans(), seed=seeds)
def test_l2_norm(
    lab: Any, place: str, rows: Any, width: int, dtype: Any, layout: str, rounds: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    word = L2Norm(1e-6, eps_place=place, norm_dtype=dtype if rounds else f32, dtype=dtype)
    x = tensor((*rows, width), dtype, layout)
    (actual,) = lab.word(word, [x], [(*rows, width)])
    lab.hold(actual, lambda: word.reference(x))


@quick
@given(rows=rows, width=widths, dtype=dtypes, layouts=st.tuples(layouts, layouts), seed=seeds)
def test_residual_add_is_bit_equal(
    lab: Any, rows: Any, width: int, dtype: Any, layouts: Any, seed: int
) -> None:
    torch.manual_seed(seed)
    word = ResidualAdd(dtype=dtype)
    operands = [tensor((*rows, width), dtype, layout) for layout in layouts]
    (actual,) = lab.word(word, operands, [(*rows, width)])
    assert torch.equal(actual, word.reference(*operands))


@pytest.mark.parametrize("act", ["silu", "sigmoid", "gelu_tanh"])
@quick
@given(
    rows=rows,
    width=widths,
    dtype=dtypes,
    layout=layouts,
    rounds=st.booleans(),
    column=st.booleans(),
    seed=seeds,
)
def test_gate_mul(
    lab: Any, act: str, rows: Any, width: int, dtype: Any, layout: str, rounds: bool, column: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    word = GateMul(act, act_dtype=dtype if rounds else f32, dtype=dtype)
    operands = [
        tensor((*rows, 1 if column else width), dtype, layout, scale=3),
        tensor((*rows, width), dtype),
    ]
    (actual,) = lab.word(word, operands, [(*rows, width)])
    lab.hold(actual, lambda: word.reference(*operands), slack=EXP_SLACK if dtype == f32 else 1.0)


@pytest.mark.parametrize("style", ["neox", "interleaved", "interleaved_to_halves"])
@pytest.mark.parametrize("table", ["halves", "pairs", "half"])
@quick
@given(data=st.data(), dtype=dtypes, layout=layouts, rounds=st.booleans(), inverse=st.booleans(), seed=seeds)
def test_rope(
    lab: Any,
    style: str,
    table: str,
    data: Any,
    dtype: Any,
    layout: str,
    rounds: bool,
    inverse: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    half, before, after = data.draw(st.tuples(st.integers(1, 80), st.integers(0, 40), st.integers(0, 40)))
    tokens, heads = data.draw(st.tuples(st.integers(0, 3), st.integers(1, 5)))
    word = Rope(
        rotary_dim=2 * half,
        offset=before,
        style=style,
        table=table,
        inverse=inverse,
        product_dtype=dtype if rounds else f32,
        dtype=dtype,
    )
    width = before + 2 * half + after
    x = tensor((tokens, heads, width), dtype, layout)
    cos, sin = (tensor((tokens, 1, half if table == "half" else 2 * half), dtype) for _ in range(2))
    (actual,) = lab.word(word, [x, cos, sin], [(tokens, heads, width)])
    lab.hold(actual, lambda: word.reference(x, cos, sin))
    assert torch.equal(actual[..., :before], x[..., :before])
    assert torch.equal(actual[..., before + 2 * half :], x[..., before + 2 * half :])


@pytest.mark.parametrize("layout", ["halves", "pairs", "half"])
@quick
@given(rows=rows, half=st.integers(1, 160), dtype=dtypes, scaling=st.sampled_from([1.0, 1.3466]), seed=seeds)
def test_rope_table(
    lab: Any, layout: str, rows: Any, half: int, dtype: Any, scaling: float, seed: int
) -> None:
    torch.manual_seed(seed)
    word = RopeTable(layout=layout, scaling=scaling, dtype=dtype)
    positions = torch.randint(0, 4096, (*rows, 1))
    frequencies = 10000.0 ** -(torch.arange(half) / half)
    width = half if layout == "half" else 2 * half
    pair = lab.word(word, [positions, frequencies], [(*rows, width)] * 2)
    for actual, expected in zip(pair, word.reference(positions[..., 0], frequencies), strict=True):
        assert torch.equal(actual, expected) or (actual.double() - expected.double()).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("order", "sections"), [("plain", (5, 4, 3)), ("interleaved", (4, 4, 4)), ("interleaved", (6, 3, 3))]
)
@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_rope_table_takes_each_frequency_from_its_position_row(
    lab: Any, order: str, sections: tuple[int, ...], layout: str
) -> None:
    word = RopeTable(layout=layout, sections=sections, section_order=order)
    positions = torch.randint(0, 4096, (3, 7))
    frequencies = 10000.0 ** -(torch.arange(12) / 12)
    pair = lab.word(word, [positions.T, frequencies], [(7, 24)] * 2)
    angles = positions[..., None] * frequencies
    assert not torch.equal(angles[0], angles[1])
    for actual, expected in zip(pair, word.reference(positions, frequencies), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


EVERY_WORD: list[tuple[Word, int]] = [
    (RMSNorm(1e-6, dtype=bf16), 2),
    (RMSNorm(1e-6, gate="silu", dtype=bf16), 3),
    (LayerNorm(1e-6, dtype=bf16), 3),
    (L2Norm(1e-6, dtype=bf16), 1),
    (ResidualAdd(dtype=bf16), 2),
    (GateMul(dtype=bf16), 2),
    (Rope(rotary_dim=36, dtype=bf16), 3),
]
every_word = pytest.mark.parametrize(
    ("word", "count"), EVERY_WORD, ids=[f"{w.kind}-{n}" for w, n in EVERY_WORD]
)


def operands_of(word: Word, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """``tensors``, with None for the optional operands that they do not reach."""
    return [*tensors, *[None] * (len(word.operands) - len(tensors))]


@every_word
def test_no_rows_launch_nothing_and_write_nothing(lab: Any, word: Word, count: int) -> None:
    operands = operands_of(word, [torch.randn(0, 36).to(bf16) for _ in range(count)])
    (actual,) = lab.word(word, operands, [(0, 36)])
    assert actual.numel() == 0


@every_word
def test_nan_and_infinity_stay_in_their_row(lab: Any, word: Word, count: int) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(5, 36).to(bf16) for _ in range(count)]
    tensors[0][1, 3], tensors[0][3, 35] = float("nan"), float("inf")
    operands = operands_of(word, tensors)
    (actual,) = lab.word(word, operands, [(5, 36)])
    torch.testing.assert_close(actual, word.reference(*operands), rtol=2**-7, atol=0, equal_nan=True)
    assert actual[[0, 2, 4]].isfinite().all()
