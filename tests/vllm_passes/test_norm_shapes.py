"""vLLM's tests of norms in other surroundings: test_fuse_mla_dual_rms_norm, test_rmsnorm_reshape_fusion,
test_double_aiter_rms_quant_fusion, test_fuse_act_padding.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import E4M3, rand
from harness import weld
from spellings import QUANTS, custom_add_norm, custom_group, custom_static, ir_add_norm, ir_norm, scaled_mm
from torch import Tensor, nn

EPS = 1e-6


class TwoLatents(nn.Module):
    """The norms of both latents of MLA, of unequal width, cut from one projection."""

    def __init__(self, quant: str | None) -> None:
        super().__init__()
        self.quantize = QUANTS[quant] if quant else None
        self.q_weight, self.kv_weight = nn.Parameter(rand(192)), nn.Parameter(rand(64))
        self.down, self.up = nn.Parameter(rand(32, 272) * 0.2), nn.Parameter(rand(192, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q_c, rest = (torch.relu(x) @ self.down).split([192, 80], -1)
        kv_c, k_pe = rest.split([64, 16], -1)
        q, kv = ir_norm(q_c, self.q_weight, EPS), ir_norm(kv_c, self.kv_weight, EPS)
        if self.quantize is None:
            return q @ self.up, kv, k_pe
        return scaled_mm(*self.quantize(q, q), self.up, x.dtype), kv, k_pe


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        (None, "rms_norm"),
        ("token", "rms_norm_quant_scale_quant__rms_norm"),
        ("group 64", "rms_norm_quant_scale_quant__rms_norm"),
    ],
    ids=["plain", "token", "group"],
)
def test_the_norms_of_two_latents_are_one_weld(quant: str | None, name: str) -> None:
    outcome = weld(TwoLatents(quant), [rand(4, 32)], dynamic=(0,) if quant is None else ())
    assert outcome.welds == [name] and outcome.misses == []
    assert outcome.result.context.plan is not None
    assert len(outcome.result.context.plan.welds[0].chains) == 2
    outcome.check()


@pytest.mark.parametrize("viewed", [False, True], ids=["no view", "view"])
def test_one_norm_with_two_quantizations_is_one_weld(viewed: bool) -> None:
    def twice(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        normed = ir_norm(torch.relu(x), w, 1e-5)
        normed = normed.view(-1, normed.shape[-1]) if viewed else normed
        return *custom_group(128)(normed, w), *custom_group(128)(normed, w)

    outcome = weld(twice, [rand(8, 256), rand(256)])
    assert outcome.welds == ["rms_norm_quant_scale_quant"] and outcome.misses == []
    assert outcome.graph.kernels == 1 and outcome.graph.operators == []
    outcome.check()


def test_a_norm_that_feeds_unlike_readers_starves_none() -> None:
    """#42411: a pass that took the norm left nothing for the next one. Here all is one weld, and the norm and
    the sum are written for others as well.
    """

    def chain(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        y, residual = ir_add_norm(x, residual, w, EPS)
        return *custom_group(128)(y, scale), *custom_static(y, scale), y, residual

    outcome = weld(chain, [rand(8, 256), rand(8, 256), rand(256), torch.tensor([0.02])])
    assert outcome.welds == ["residual_add_rms_norm_quant_scale_quant"] and outcome.misses == []
    assert outcome.graph.kernels == 1 and outcome.graph.operators == []
    outcome.check()


def norm_then_view(x: Tensor, residual: Tensor, w: Tensor) -> Tensor:
    return ir_norm(x, w, EPS).reshape(-1, x.shape[-1])


def sum_then_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    residual = x + residual
    return ir_norm(residual, w, EPS).reshape(-1, x.shape[-1]), residual


def other_sum_then_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return sum_then_norm(residual, x, w)


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (norm_then_view, "rms_norm"),
        (sum_then_norm, "residual_add_rms_norm"),
        (other_sum_then_norm, "residual_add_rms_norm"),
    ],
)
def test_a_view_behind_a_norm_hides_neither_the_norm_nor_the_sum(
    fn: Callable[..., object], name: str
) -> None:
    outcome = weld(fn, [rand(2, 7, 32), rand(2, 7, 32), rand(32)])
    assert outcome.welds == [name] and outcome.misses == []
    outcome.check()


def test_codes_behind_the_view_are_part_of_the_weld() -> None:
    """What the view was in the way of, in models of transformers."""

    def chain(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        normed, total = sum_then_norm(x, residual, w)
        return *custom_static(normed, scale), total

    outcome = weld(chain, [rand(2, 7, 32), rand(2, 7, 32), rand(32), torch.tensor([0.02])])
    assert outcome.welds == ["residual_add_rms_norm_quant"]
    outcome.check()


def padded(x: Tensor, w: Tensor, router: Tensor) -> tuple[Tensor, ...]:
    """Norms whose result a router reads as it is and experts read padded."""
    x, residual = torch.relu(x), torch.neg(x)
    logits = []
    for _ in range(3):
        x, residual = custom_add_norm(x[:, :72].clone(), residual.clone(), w, 1e-5)
        logits.append(x @ router)
        x = torch.nn.functional.pad(x, (0, 56))
    return x, residual, *logits


def test_norms_before_a_pad_are_welded_and_the_pad_is_not() -> None:
    """vLLM's kernel for ROCm writes the zeros as well; here a copy by Inductor does."""
    outcome = weld(padded, [rand(4, 72), rand(72), rand(72, 8)])
    assert outcome.welds == ["residual_add_rms_norm"] * 3
    assert outcome.count(torch.ops.aten.constant_pad_nd.default) == 3
    outcome.check()


def test_a_pad_of_nothing_gives_no_input_away() -> None:
    """#52383: a pad that became an alias of its operand was overwritten when a CUDA graph was replayed."""

    def chain(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.pad(x, (0, 0)), torch.nn.functional.pad(ir_norm(x, w, EPS), (0, 0))

    outcome = weld(chain, [rand(4, 64), rand(64)])
    assert outcome.welds == ["rms_norm"]
    outcome.check()


def test_rows_cut_by_a_symbol_are_welded() -> None:
    """#42543: sizes that are computed for a slice lost what they stood for."""

    def chain(x: Tensor, w: Tensor, places: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        normed = ir_norm(x[: places.shape[0]], w, EPS)
        codes = torch.empty(normed.shape, dtype=E4M3)
        torch.ops._C.static_scaled_fp8_quant(codes, normed, scale, None)
        return codes, normed[: places.shape[0] // 2] * 2

    outcome = weld(chain, [rand(8, 64), rand(64), torch.arange(6), torch.tensor([0.02])], dynamic=(0, 2))
    assert outcome.welds == ["rms_norm_quant"]
    outcome.check()
