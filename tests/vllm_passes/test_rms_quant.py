"""vLLM's test_fusion: a norm, with a residual sum or without, and the quantization behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import E4M3, bf16, rand
from harness import Outcome, weld
from spellings import LIMIT, NORMS, QUANTS, custom_static, ir_add_norm, scaled_mm
from torch import Tensor, nn

HIDDEN = 256
CODED = {"static": "quant"}

#: Of vLLM's product of spellings, each norm and each quantization.
CASES = [
    ("ir", "token"),
    ("ir", "group 128"),
    ("ir", "group 64"),
    ("custom", "static"),
    ("custom", "token"),
    ("custom", "group 64"),
]


class Layers(nn.Module):
    """Linear layers in fp8, and a norm before and behind each."""

    def __init__(
        self,
        norm: str,
        quant: str,
        linears: int = 2,
        eps: float = 1e-6,
        dtype: torch.dtype = bf16,
        *,
        activation: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.norm, self.add_norm = NORMS[norm]
        self.quantize, self.eps = QUANTS[quant], eps
        self.norms = nn.ParameterList(
            nn.Parameter(torch.rand(HIDDEN).to(dtype) + 0.5) for _ in range(linears + 1)
        )
        self.linears = nn.ParameterList(
            nn.Parameter((torch.randn(HIDDEN, HIDDEN) * 0.05).to(dtype)) for _ in range(linears)
        )

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        x = residual = torch.relu(x) if self.activation else x
        y = self.norm(x, self.norms[0], self.eps)
        for linear, weight in zip(self.linears, self.norms[1:], strict=True):
            x = scaled_mm(*self.quantize(y, scale), linear, x.dtype)
            y, residual = self.add_norm(x, residual, weight, self.eps)
        return y


def through(
    model: nn.Module, tokens: int = 5, dtype: torch.dtype = bf16, dynamic: tuple[int, ...] = ()
) -> Outcome:
    return weld(model, [torch.rand(tokens, HIDDEN).to(dtype), torch.tensor([0.02])], dynamic=dynamic)


def test_three_norms_are_welded_with_their_codes() -> None:
    """vLLM counts three: behind the fourth norm there are no codes."""
    outcome = through(Layers("ir", "static", linears=3), 33, dynamic=(0,))
    coded = ["rms_norm_quant", *["residual_add_rms_norm_quant"] * 2]
    assert outcome.welds == [*coded, "residual_add_rms_norm"] and outcome.misses == []
    outcome.check()


@pytest.mark.parametrize(("norm", "quant"), CASES, ids=[f"{norm} {quant}" for norm, quant in CASES])
def test_every_norm_before_a_linear_layer_is_welded_with_its_codes(norm: str, quant: str) -> None:
    outcome = through(Layers(norm, quant))
    first, second, last = outcome.welds
    assert first == f"rms_norm_{CODED.get(quant, 'quant_scale_quant')}" and second == f"residual_add_{first}"
    assert last == "residual_add_rms_norm" and outcome.misses == []
    outcome.check()


def test_any_epsilon_and_float16_do() -> None:
    """vLLM has a pattern for each of two epsilons."""
    outcome = through(Layers("ir", "static", 1, 0.125, torch.float16), 5, torch.float16)
    assert outcome.welds == ["rms_norm_quant", "residual_add_rms_norm"]
    outcome.check()


PLAIN = [("native", "native static"), ("ir", "native static"), ("ir", "native token")]


@pytest.mark.parametrize(("norm", "quant"), PLAIN, ids=[f"{norm} {quant}" for norm, quant in PLAIN])
def test_a_norm_that_has_only_plain_steps_around_is_left_to_inductor(norm: str, quant: str) -> None:
    """The first norm, which stands behind an activation: Inductor makes one kernel of all of it."""
    outcome = through(Layers(norm, quant))
    assert outcome.welds == ["residual_add_rms_norm_quant", "residual_add_rms_norm"]
    assert [miss.kind for miss in outcome.misses] == ["rms_norm", "quant"]
    assert all("one launch more" in miss.reason and miss.rule == "cost" for miss in outcome.misses)
    outcome.check()


@pytest.mark.parametrize(("norm", "quant"), PLAIN, ids=[f"{norm} {quant}" for norm, quant in PLAIN])
def test_behind_a_linear_layer_plain_codes_are_welded_with_every_norm(norm: str, quant: str) -> None:
    model, linear = Layers(norm, quant, activation=False), torch.eye(HIDDEN, dtype=bf16)
    outcome = weld(lambda x, scale: model(x @ linear, scale), [rand(5, HIDDEN), torch.tensor([0.02])])
    assert sorted(outcome.welds) == [
        "residual_add_rms_norm",
        "residual_add_rms_norm_quant",
        "rms_norm_quant",
    ]
    assert outcome.misses == []
    outcome.check()


def sum_norm_and_static(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    y, residual = ir_add_norm(x, residual, w, 1e-6)
    return *custom_static(y, scale), residual


def test_a_weight_in_float32_is_welded_with_its_own_rounding() -> None:
    """vLLM's kernels are for one dtype: with a weight of another they gave garbage (#48324) or crashed
    (#44694), and since then nothing matches.
    """
    inputs = [rand(5, HIDDEN), rand(5, HIDDEN), torch.rand(HIDDEN) + 0.5, torch.tensor([0.02])]
    outcome = weld(sum_norm_and_static, inputs)
    assert outcome.welds == ["residual_add_rms_norm_quant"] and outcome.misses == []
    outcome.check()


def test_one_plus_the_weight_is_part_of_the_weld() -> None:
    """Gemma's norm, which vLLM joins with no quantization."""

    def gemma(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return sum_norm_and_static(x, residual, w.float() + 1.0, scale)

    outcome = weld(gemma, [rand(5, HIDDEN), rand(5, HIDDEN), rand(HIDDEN), torch.tensor([0.02])])
    assert outcome.welds == ["residual_add_rms_norm_quant"]
    outcome.check()


def norm_into(dtype: torch.dtype) -> Callable[..., object]:
    def norm(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        torch.ops._C.rms_norm(out, x, w, 1e-6)
        codes = torch.empty(x.shape, dtype=dtype)
        torch.ops._C.static_scaled_fp8_quant(codes, out, scale, None)
        return codes

    return norm


def test_an_operator_with_a_weight_of_another_dtype_stays_and_says_so() -> None:
    outcome = weld(norm_into(E4M3), [rand(5, HIDDEN), torch.rand(HIDDEN), torch.tensor([0.02])])
    assert not any("rms_norm" in name for name in outcome.welds)
    assert outcome.reasons("_C.rms_norm") == ["the weight %arg1_1 is float32, the input bfloat16"]
    outcome.check()


@pytest.mark.parametrize(
    ("in_tiles", "welds"), [(False, 1), (True, 0)], ids=["1 row", "a tile that is not filled"]
)
def test_nvfp4_behind_a_residual_sum(in_tiles: bool, welds: int) -> None:
    """vLLM's kernel pads tiles of scales; the words have nothing to pad with. Tiles that are full are welded
    in the tests of the dialect.
    """
    rows, width = 1, 256

    def chain(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        y, residual = ir_add_norm(x, residual, w, 1e-6)
        codes = torch.empty(rows, width // 2, dtype=torch.uint8)
        scales = torch.empty(rows, width // 16, dtype=torch.uint8)
        if in_tiles:
            scales = torch.empty(-(rows // -128) * 128, width // 64, dtype=torch.int32)
        torch.ops._C.scaled_fp4_quant(codes, y, scales, scale, in_tiles)
        return codes, *([scales] if welds else []), residual

    given = [rand(rows, width), rand(rows, width), rand(width), torch.tensor([LIMIT])]
    outcome = weld(chain, given)
    named = [name for name in outcome.welds if name.startswith("residual_add_rms_norm_quant_scale_e4m3_e2m1")]
    assert len(named) == welds, outcome.welds
    assert bool(outcome.reasons("_C.scaled_fp4_quant")) != bool(welds)
    outcome.check()
