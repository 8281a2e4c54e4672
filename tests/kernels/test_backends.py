"""Which library computes attention, and what it is called with: stand-ins record the calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelweld.errors import UnknownName
from kernelweld.kernels import backends

sys.path.insert(0, str(Path(__file__).parent))
import index_cases
import mla_cases
from mla_cases import bf16


class Library(SimpleNamespace):
    """A module that records the calls of its functions and returns what it was given."""

    def function(self, name: str, result: object) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

        def record(*args: object, **kwargs: object) -> object:
            self.calls.append((name, args, kwargs))
            return result

        setattr(self, name, record)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No library, the default setting, and a GPU that the libraries support."""
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for cached in (backends.setting, backends.library):
        cached.cache_clear()
    yield
    for cached in (backends.setting, backends.library):
        cached.cache_clear()


def index_arguments(**change: Any) -> list[torch.Tensor]:
    shape = {"lengths": [100, 30], "heads": 64, "width": 128, "block": 64, "pages": 2}
    return [x for x in index_cases.case(**shape | change).values() if torch.is_tensor(x)]


def mla_arguments(kind: torch.dtype, heads: int = 64, count: int = 128) -> list[Any]:
    case = mla_cases.case(2, heads, count, 512, 64, 64, 4, (bf16, kind))
    return [case["q"], case["cache"], case["slots"]]


def test_ours_where_nothing_is_installed() -> None:
    assert backends.of_index_logits(*index_arguments()).why == "deep_gemm is not installed"
    chosen = backends.of_sparse_mla(*mla_arguments(bf16), 512)
    assert (chosen.name, chosen.why, chosen.call) == ("triton", "flash_mla is not installed", None)


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backends.VARIABLE, "triton")
    monkeypatch.setitem(sys.modules, "flash_mla", Library())
    assert backends.of_sparse_mla(*mla_arguments(bf16), 512).why == "KERNELWELD_ATTENTION=triton"
    backends.setting.cache_clear()
    monkeypatch.setenv(backends.VARIABLE, "tritan")
    with pytest.raises(UnknownName, match="did you mean 'triton'") as raised:
        backends.setting()
    assert "the environment variable KERNELWELD_ATTENTION" in str(raised.value)


def test_a_library_that_does_not_load_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flash_mla.py").write_text("raise OSError('libcudart.so.12')")
    monkeypatch.syspath_prepend(tmp_path)
    assert backends.library("flash_mla") is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"heads": 16}, "32 or 64 heads of 128"),
        ({"width": 64}, "32 or 64 heads of 128"),
        ({"block": 16}, "pages of 64 rows"),
        ({"kinds": (bf16, bf16)}, "e4m3 queries and packed keys"),
    ],
)
def test_what_deep_gemm_does_not_support(monkeypatch: Any, change: dict[str, Any], why: str) -> None:
    monkeypatch.setitem(sys.modules, "deep_gemm", Library())
    chosen = backends.of_index_logits(*index_arguments(**change))
    assert chosen.call is None and why in chosen.why


def test_what_flash_mla_does_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_mla", Library())
    q, cache, slots = mla_arguments(bf16)
    for arguments, why in [
        ((q[:, :16], cache, slots, 512), "64 or 128 heads"),
        ((q, cache, slots[:, :100], 512), "multiples of 128 slots"),
        ((q.float(), cache, slots, 512), "bfloat16 queries"),
        ((q, cache.to(mla_cases.e4m3), slots, 512), "no other cache"),
        ((q, cache, slots, 448), "rank 512"),
        ((q, cache[:, ::2], slots, 512), "contiguous"),
    ]:
        assert why in backends.of_sparse_mla(*arguments).why
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "Hopper only" in backends.of_sparse_mla(q, cache, slots, 512).why


def test_deep_gemm_is_called_as_vllm_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(get_num_sms=lambda: 132, get_paged_mqa_logits_metadata=lambda *given: given)
    library.function("fp8_paged_mqa_logits", torch.zeros(2, 256))
    monkeypatch.setitem(sys.modules, "deep_gemm", library)
    q, weights, cache, lengths, table = index_arguments()
    chosen = backends.of_index_logits(q, weights, cache, lengths, table)
    assert chosen.name == "deep_gemm" and chosen.call is not None
    logits = chosen.call(q, weights, cache, lengths, table)
    ((_, args, kwargs),) = library.calls
    shapes = [tuple(x.shape) for x in args[:5]]
    assert shapes == [(2, 1, 64, 128), (5, 64, 1, 132), (2, 64), (2, 1), (2, 2)]
    assert args[5][1:] == (64, 132) and args[6] == 128 and kwargs == {"clean_logits": False}
    assert logits.isfinite().sum(1).tolist() == [100, 30] and logits.shape == (2, 128)


def test_flash_mla_is_called_for_rows_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    library, out = Library(), torch.zeros(2, 64, 512)
    library.function("flash_mla_sparse_fwd", (out, None, None))
    monkeypatch.setitem(sys.modules, "flash_mla", library)
    q, cache, slots = mla_arguments(bf16)
    call = backends.of_sparse_mla(q, cache, slots, 512).call
    assert call is not None and call(q, cache, slots, 0.5) is out
    ((_, args, kwargs),) = library.calls
    assert [tuple(x.shape) for x in args[:3]] == [(2, 64, 576), (256, 1, 576), (2, 1, 128)]
    assert args[3] == 0.5 and kwargs == {"d_v": 512}


def test_flash_mla_is_called_for_packed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(get_mla_metadata=lambda **given: (given["topk"], None))
    library.function("flash_mla_with_kvcache", (torch.ones(2, 1, 64, 512), None))
    monkeypatch.setitem(sys.modules, "flash_mla", library)
    q, cache, slots = mla_arguments(torch.uint8)
    call = backends.of_sparse_mla(q, cache, slots, 512).call
    assert call is not None and call(q, cache, slots, 0.5).shape == (2, 64, 512)
    ((_, _, kwargs),) = library.calls
    shapes = [tuple(kwargs[name].shape) for name in ("q", "k_cache", "indices")]
    assert shapes == [(2, 1, 64, 576), (4, 64, 1, 656), (2, 1, 128)]
    assert kwargs["tile_scheduler_metadata"] == 128 and kwargs["is_fp8_kvcache"] is True
