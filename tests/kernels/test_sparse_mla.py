"""``sparse_mla``: the kernel against its reference, and the reference against dense attention."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.errors import BadOperand
from kernelweld.kernels import sparse_mla as module
from kernelweld.kernels.arrivals import Arrivals, arrivals
from kernelweld.kernels.sparse_mla import Tiling, kernel, reference, sparse_mla

sys.path.insert(0, str(Path(__file__).parent))
from mla_cases import KINDS, assert_holds, bf16, case, e4m3, f32

quick = settings(settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "kernels")))

SPLIT = Tiling(tile=16, splits=4)
TILINGS = [Tiling(tile=16), SPLIT, replace(SPLIT, parts=2), Tiling(heads=32, tile=32, splits=2)]


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_every_tiling(tiling: Tiling) -> None:
    assert_holds(case(2, 3, 70), tiling=tiling)


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_every_kind_of_cache(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    for tiling in (None, replace(SPLIT, parts=4)):
        assert_holds(case(1, 2, 40, kinds=kinds, rank=512, rope=64), tiling=tiling)


def test_the_reference_is_dense_attention_where_all_slots_are_chosen() -> None:
    args = case(1, 3, 12, kinds=(f32, f32), pages=3)
    args["slots"] = torch.randperm(12)[None].int()
    rows = args["cache"].flatten(0, 1)[None, None].expand(1, 3, -1, -1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        args["q"].transpose(0, 1)[None], rows, rows[..., :32], scale=args["scale"]
    )
    torch.testing.assert_close(sparse_mla(**args), expected[0].transpose(0, 1))


def test_the_reference_reads_packed_rows() -> None:
    args = case(1, 1, 1, kinds=(f32, torch.uint8), rank=512, rope=64)
    args["slots"] = torch.tensor([[5]], dtype=torch.int32)
    row = args["cache"][1, 1]
    scales = row[512:528].view(f32).repeat_interleave(128)
    assert torch.equal(sparse_mla(**args)[0, 0], row[:512].view(e4m3).float() * scales)


@pytest.mark.parametrize("tiling", TILINGS[:3], ids=str)
def test_nothing_chosen(tiling: Tiling) -> None:
    args = case(3, 2, 64)
    args["slots"][1] = -1
    args["slots"][2, :-1] = -1
    args["slots"][2, -1] = 0
    args["cache"][-1] = torch.nan  # a row that nothing points at
    actual = assert_holds(args, tiling=tiling)
    assert actual[1].eq(0).all()
    assert torch.equal(actual[2], args["cache"][0, 0, :32].expand(2, -1))


def test_one_slot_more_or_less_than_a_tile() -> None:
    for count in (0, 1, 16, 17):
        for tiling in TILINGS[:2]:
            actual = assert_holds(case(1, 2, count), tiling=tiling)
            assert actual.ne(0).any() == (count > 0)


def test_large_scores_do_not_overflow() -> None:
    args = case(1, 2, 40)
    args["q"] *= 300
    assert assert_holds(args, tiling=SPLIT).isfinite().all()


def test_nan_is_not_lost() -> None:
    args = case(2, 2, 40)
    slot = int(args["slots"][0].max())
    args["cache"].view(-1, 48)[slot, 3] = torch.nan
    args["slots"][1][args["slots"][1] == slot] = -1
    actual = kernel(**args, tiling=SPLIT)
    assert actual[0].isnan().all() and actual[1].isfinite().all()


def test_a_launch_leaves_counters_zero_and_repeats_its_bits() -> None:
    args = case(2, 3, 70)
    first = kernel(**args, tiling=SPLIT)
    assert torch.equal(kernel(**args, tiling=SPLIT), first)
    assert module.arrivals(args["q"].device, 1 << 16).eq(0).all()


def test_calls_take_other_counters_until_there_are_no_more() -> None:
    counters = Arrivals(torch.zeros(10, dtype=torch.int32))
    starts = [int(counters.take(4).storage_offset()) for _ in range(4)]
    assert starts == [0, 4, 0, 4]
    assert len(arrivals(torch.device("meta"), 1 << 17)) == 1 << 17


def test_strided_operands() -> None:
    args = case(3, 2, 40)
    expected = kernel(**args, tiling=SPLIT)
    args["q"] = torch.randn(3, 5, 99).to(bf16).narrow(1, 1, 2)[..., 3::2].copy_(args["q"])
    args["slots"] = args["slots"].repeat_interleave(2, 1)[:, ::2]
    wide = torch.randn(*args["cache"].shape[:2], 2, 60).to(bf16)
    args["cache"] = wide[:, :, 1, 12:].copy_(args["cache"])
    assert torch.equal(kernel(**args, tiling=SPLIT), expected)


@quick
@given(
    tokens=st.integers(0, 3),
    heads=st.integers(1, 40),
    count=st.integers(0, 50),
    rank=st.sampled_from([16, 24, 64]),
    rope=st.sampled_from([0, 8, 16]),
    block=st.sampled_from([1, 3, 8]),
    kinds=st.sampled_from(KINDS[:-2]),
    tiling=st.sampled_from([None, *TILINGS[:2]]),
)
def test_any_shape(tiling: Tiling | None, **shape: Any) -> None:
    assert_holds(case(**shape), tiling=tiling)


def test_what_is_refused() -> None:
    good = case(1, 2, 4)
    for change, message in [
        ({"q": good["q"].half()}, "float16 as 'q'"),
        ({"slots": good["slots"].long()}, "int64 as 'slots'"),
        ({"slots": torch.cat([good["slots"]] * 2)}, r"shape \[2, 4\] as 'slots'"),
        ({"cache": good["cache"].to(e4m3)}, "nothing as 'scale_kv'"),
        ({"scale_kv": torch.ones(1)}, "a scale as 'scale_kv'"),
        ({"cache": good["cache"].view(torch.uint8)}, "as 'cache'"),
        ({"rank": 49}, "48 elements a head with rank 49 as 'q'"),
        ({"cache": good["cache"].transpose(1, 2).contiguous().transpose(1, 2)}, "strides"),
    ]:
        for function in (kernel, reference):
            with pytest.raises(BadOperand, match=message):
                function(**good | change)


def test_shapes_of_fake_tensors() -> None:
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {n: mode.from_tensor(x) if torch.is_tensor(x) else x for n, x in case(3, 2, 9).items()}
        assert sparse_mla(**fakes).shape == (3, 2, 32)
