"""``index_logits``: the kernel against its reference, and the reference against a loop in Python."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.errors import BadOperand
from kernelweld.kernels.index_logits import index_logits, kernel, reference

sys.path.insert(0, str(Path(__file__).parent))
from index_cases import KINDS, bf16, case, e4m3, f32

quick = settings(settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "kernels")))


def assert_holds(arguments: dict[str, object], **launch: int) -> torch.Tensor:
    """The kernel's result, which is the reference's but for the order of sums."""
    actual, expected = kernel(**arguments, **launch), reference(**arguments)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-3)
    return actual


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_every_kind_of_cache(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    logits = assert_holds(case([0, 1, 5, 12], kinds=kinds))
    assert logits.isfinite().sum(1).tolist() == [0, 1, 5, 12]


def test_the_reference_is_the_sum_over_heads() -> None:
    args = case([5, 2])
    logits = index_logits(**args)
    codes = args["cache"].view(len(args["cache"]), -1)
    for token, length in enumerate((5, 2)):
        for j in range(length):
            page, row = args["table"][token, j // 4], j % 4
            key = codes[page, row * 32 : row * 32 + 32].view(e4m3).double()
            at = 4 * 32 + 4 * row
            scale = codes[page, at : at + 4].view(f32).double()
            dots = (args["q"][token].double() @ key).relu() * scale
            expected = args["weights"][token].double() @ dots
            torch.testing.assert_close(logits[token, j].double(), expected.squeeze(), rtol=1e-5, atol=1e-5)
    assert logits[0, 5:].eq(-math.inf).all()


def test_products_of_codes_are_exact() -> None:
    args = case([12], heads=1)
    args["q"] = torch.zeros(1, 1, 32).to(e4m3)
    args["q"][0, 0, :3] = torch.tensor([448.0, 2.0**-9, -0.4375]).to(e4m3)
    args["weights"].fill_(1)
    assert torch.equal(kernel(**args), reference(**args))


@pytest.mark.parametrize("heads", [1, 64, 70])
def test_heads_that_are_padded_or_looped_over(heads: int) -> None:
    assert_holds(case([9], heads=heads, width=48))


@pytest.mark.parametrize("tile", [16, 32])
def test_a_row_has_the_same_bits_in_any_batch(tile: int) -> None:
    args = case([29, 12, 30], block=6, pages=5)
    whole = assert_holds(args, tile=tile)
    one = {n: x[1:2] if torch.is_tensor(x) and n != "cache" else x for n, x in args.items()}
    assert torch.equal(kernel(**one, tile=16), whole[1:2])


def test_strided_operands() -> None:
    args = case([7, 12], kinds=(bf16, bf16))
    expected = kernel(**args)
    args["q"] = torch.randn(2, 5, 99).to(bf16).narrow(1, 1, 3)[..., 3::3].copy_(args["q"])
    args["weights"] = args["weights"].T.contiguous().T
    args["cache"] = args["cache"].transpose(1, 2).contiguous().transpose(1, 2)
    args["table"] = args["table"].repeat_interleave(2, 1)[:, ::2]
    args["lengths"] = args["lengths"].repeat_interleave(2)[::2]
    assert torch.equal(kernel(**args), expected)


def test_pages_of_a_layer_in_a_wider_allocation() -> None:
    args = case([7, 12])
    expected = kernel(**args)
    cache = args["cache"]
    args["cache"] = torch.stack([cache, cache + 1], 1)[:, 0]
    assert args["cache"].stride(0) == 2 * cache.stride(0)
    assert torch.equal(kernel(**args), expected)


def test_nan_is_not_lost_and_does_not_spread() -> None:
    args = case([12])
    args["cache"].view(4, -1)[args["table"][0, 1], 5] = 0x7F
    for function in (kernel, reference):
        assert torch.equal(function(**args).isnan(), torch.arange(12)[None] == 4)


def test_lengths_beyond_the_table_and_below_zero() -> None:
    args = case([12, 0])
    args["lengths"] += torch.tensor([5, -3], dtype=torch.int32)
    assert assert_holds(args).isfinite().sum(1).tolist() == [12, 0]


@pytest.mark.parametrize(("tokens", "pages"), [(0, 3), (2, 0), (0, 0)])
def test_nothing_to_do(tokens: int, pages: int) -> None:
    args = case([0] * tokens, pages=pages)
    assert kernel(**args).shape == reference(**args).shape == (tokens, pages * 4)


@quick
@given(
    lengths=st.lists(st.integers(0, 24), min_size=1, max_size=3),
    heads=st.integers(1, 20),
    width=st.sampled_from([4, 16, 36, 64, 128]),
    block=st.sampled_from([1, 3, 8]),
    kinds=st.sampled_from(KINDS),
)
def test_any_shape(lengths: list[int], heads: int, width: int, block: int, kinds: tuple) -> None:
    assert_holds(case(lengths, heads, width, block, 24 // block, kinds), tile=16)


def test_what_is_refused() -> None:
    good = case([3])
    for name, bad, message in [
        ("q", good["q"].half(), "does not take float16 as 'q'"),
        ("table", good["table"].long(), "int64 as 'table'"),
        ("weights", good["weights"][:, :1], r"shape \[1, 1\] as 'weights'"),
        ("cache", good["cache"][..., :-1], r"as 'cache'"),
        ("cache", good["cache"].transpose(1, 2).contiguous().transpose(1, 2), "strides"),
    ]:
        for function in (kernel, reference):
            with pytest.raises(BadOperand, match=message):
                function(**good | {name: bad})


def test_shapes_of_fake_tensors() -> None:
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {n: mode.from_tensor(x) if torch.is_tensor(x) else x for n, x in case([3, 4]).items()}
        assert index_logits(**fakes).shape == (2, 12)
