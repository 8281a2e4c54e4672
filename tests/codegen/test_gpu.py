"""Generated kernels on a real GPU: the contract, and the same bits for a row at any batch size.

Run with ``TRITON_INTERPRET=0``; the other tests of this folder interpret.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.run import launch_direct
from kernelweld.ir import GateMul, L2Norm, LayerNorm, ResidualAdd, RMSNorm, Rope, RopeTable, Word

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0"),
]

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32


def words(dtype: torch.dtype) -> list[Word]:
    """One word of each kind and of each kind of rounding."""
    return [
        RMSNorm(1e-6, normed_dtype=dtype, dtype=dtype),
        RMSNorm(1e-6, scale="1+w", dtype=dtype),
        RMSNorm(1e-6, gate="silu", normed_dtype=dtype, dtype=dtype),
        LayerNorm(1e-5, dtype=dtype),
        L2Norm(1e-6, dtype=dtype),
        L2Norm(1e-6, eps_place="clamp", norm_dtype=dtype, dtype=dtype),
        ResidualAdd(dtype=dtype),
        GateMul("silu", act_dtype=dtype, dtype=dtype),
        GateMul("sigmoid", act_dtype=dtype, dtype=dtype),
        GateMul("gelu_tanh", act_dtype=dtype, dtype=dtype),
    ]


def operands(word: Word, rows: int, width: int, dtype: torch.dtype) -> list[torch.Tensor | None]:
    full = [torch.randn(rows, width, device="cuda").to(dtype) for _ in range(2)]
    weights = [(torch.randn(width, device="cuda") * 0.3 + 1).to(dtype) for _ in range(2)]
    if isinstance(word, RMSNorm):
        return [full[0], weights[0], None if word.gate == "none" else full[1]]
    if isinstance(word, LayerNorm):
        return [full[0], *weights]
    return full[: len(word.operands)]  # type: ignore[return-value]


@pytest.mark.parametrize("width", [1, 64, 576, 1536, 7168, 16384])
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
def test_words_hold_their_contract(lab: Any, dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    for word in words(dtype):
        tensors = operands(word, 37, width, dtype)
        (actual,) = lab.word(word, tensors, [(37, width)])
        # Triton's exp is exp2 of a rounded product: a few ulp of float32
        lab.hold(
            actual, lambda w=word, t=tensors: w.reference(*t), slack=8.0 if dtype == f32 else 1.0, equal=0.97
        )


@pytest.mark.parametrize("style", ["neox", "interleaved", "interleaved_to_halves"])
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
def test_rope_holds_its_contract(lab: Any, dtype: torch.dtype, style: str) -> None:
    torch.manual_seed(0)
    word = Rope(rotary_dim=64, offset=32, style=style, product_dtype=dtype, dtype=dtype)
    x = torch.randn(9, 16, 128, device="cuda").to(dtype)
    cos, sin = (torch.randn(9, 1, 64, device="cuda").to(dtype) for _ in range(2))
    (actual,) = lab.word(word, [x, cos, sin], [(9, 16, 128)])
    lab.hold(actual, lambda: word.reference(x, cos, sin))


def test_rope_table_is_exact_at_long_positions(lab: Any) -> None:
    positions = torch.randint(0, 131072, (64, 1), device="cuda")
    frequencies = 10000.0 ** -(torch.arange(64, device="cuda") / 64)
    word = RopeTable()
    pair = lab.word(word, [positions, frequencies], [(64, 128)] * 2)
    for actual, expected in zip(pair, word.reference(positions[..., 0], frequencies), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=3e-7)


@pytest.mark.parametrize("width", [128, 576, 7168])
def test_a_row_has_the_same_bits_at_any_batch_size(lab: Any, width: int) -> None:
    torch.manual_seed(0)
    word = RMSNorm(1e-6)
    x, weight = torch.randn(300, width, device="cuda"), torch.randn(width, device="cuda")
    (whole,) = lab.word(word, [x, weight, None], [(300, width)])
    for rows in (1, 2, 7, 64):
        (some,) = lab.word(word, [x[:rows], weight, None], [(rows, width)])
        assert torch.equal(some, whole[:rows])


@pytest.mark.parametrize("tokens", [1, 5, 200])
def test_a_pack_launched_with_symbolic_rows(catalogue: Any, tokens: int) -> None:
    torch.manual_seed(0)
    kernel = catalogue("decode_pack")
    shapes = {
        "down_in": (tokens, 2112),
        "q_weight_in": (1536,),
        "kv_weight_in": (512,),
        "cos_in": (tokens, 32),
        "sin_in": (tokens, 32),
        "q_normed_out": (tokens, 1536),
        "kv_normed_out": (tokens, 512),
        "k_turned_out": (tokens, 64),
    }
    dtypes = dict(zip(kernel.tensors, kernel.dtypes, strict=True))
    t = {name: torch.randn(shapes[name], device="cuda").to(dtypes[name]) for name in kernel.tensors}
    launch_direct(kernel, t, {"tokens": tokens})
    norm = RMSNorm(1e-6, normed_dtype=bf16, dtype=bf16)
    q, kv, k = t["down_in"].split([1536, 512, 64], -1)
    assert torch.equal(t["q_normed_out"], norm.reference(q, t["q_weight_in"], None))
    assert torch.equal(t["kv_normed_out"], norm.reference(kv, t["kv_weight_in"], None))
    rope = Rope(rotary_dim=64, style="interleaved_to_halves", table="half", dtype=bf16)
    torch.testing.assert_close(
        t["k_turned_out"], rope.reference(k, t["cos_in"], t["sin_in"]), rtol=2**-7, atol=1e-3
    )
