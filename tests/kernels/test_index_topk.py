"""``index_topk`` against its reference: interpreted with small sizes, on a GPU with those of models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelweld.codegen.interpreter import interpreting
from kernelweld.errors import BadOperand
from kernelweld.kernels import index_topk as module
from kernelweld.kernels import topk_rows
from kernelweld.kernels.index_topk import DEFAULT, Sizes, index_topk, launch, reference

sys.path.insert(0, str(Path(__file__).parent))

from topk_cases import LENGTHS, SCORES, apart

SIZES = Sizes(small=64, tile=512, chunk=128, sample=128, programs=8, warps=4)
#: Around the borders of SIZES with k = 8: a copy, one program with either tile, several programs.
BORDERS = [0, -3, 1, 8, 9, 64, 65, 513, 1400, 12, 5000]
USUAL = ("special",)

compiled = pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0")


#: The interpreter warns where inf - inf is NaN.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """The same scores in each run; every launch leaves all counters at zero."""
    torch.manual_seed(0)
    yield
    assert all(not ring.any() for ring in module._rings.values())


def plain(scores: torch.Tensor, length: int, k: int) -> list[int]:
    """The definition, in Python's own numbers: NaN first, then the larger, then the lower index."""
    row = scores.tolist()[: max(length, 0)]
    order = sorted(range(len(row)), key=lambda i: (row[i] == row[i], -row[i] if row[i] == row[i] else 0.0, i))
    chosen = sorted(order[:k])
    return chosen + [-1] * (k - len(chosen))


def pages(rows: int, columns: int, block: int, device: str = "cpu") -> torch.Tensor:
    return torch.randint(0, 1000, (rows, -(-columns // block)), dtype=torch.int32, device=device)


def hold(scores: torch.Tensor, lengths: torch.Tensor, k: int, sizes: Sizes = SIZES, block: int = 0) -> None:
    """The kernel gives just what the reference gives."""
    table = pages(*scores.shape, block, scores.device.type) if block else None
    actual = launch(scores, lengths, table, k, block, sizes)
    expected = reference(scores, lengths, table, k=k, block=block)
    assert torch.equal(actual, expected), (actual != expected).any(1).nonzero().flatten().tolist()


@pytest.mark.parametrize("name", SCORES)
def test_the_reference_is_the_definition(name: str) -> None:
    scores = SCORES[name](torch.randn(6, 90))
    lengths = torch.tensor([90, 7, 0, -1, 100, 41], dtype=torch.int32)
    for k in (1, 8, 40, 120):
        expected = [plain(row, n, k) for row, n in zip(scores, lengths.tolist(), strict=True)]
        assert reference(scores, lengths, k=k).tolist() == expected


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.nightly) for name in SCORES]
)
def test_short_and_long_rows_in_one_batch(name: str) -> None:
    padded = torch.randn(len(BORDERS), 1500)[:, :1403]
    hold(padded.copy_(SCORES[name](padded)), torch.tensor(BORDERS, dtype=torch.int32), 8)


@pytest.mark.parametrize("name", SCORES)
def test_one_program(name: str) -> None:
    hold(SCORES[name](torch.randn(2, 200)), torch.tensor([199, 57], dtype=torch.int32), 21)


def test_reading_late() -> None:
    lengths = torch.tensor([199, 64, 7, 600], dtype=torch.int32)
    hold(torch.randn(4, 600), lengths, 21, replace(SIZES, early=False), block=8)


def test_keys_go_by_bits() -> None:
    """NaN of either sign is largest, subnormals are numbers, and zeros are equal."""
    bits = [0x7F800000, -0x400000, -1, 1, 0, -(1 << 31), -0x7FFFFFFF, 0x7FC00000]
    keys = module._keys(torch.tensor(bits, dtype=torch.int32).view(torch.float32)).tolist()
    assert keys == [0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF, 1, 0, 0, -2, 0x7FFFFFFF]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("normal", ["_kept", "search"]),
        ("sampled high", ["search", "_sweep"]),
        ("sampled low", ["search", "_sweep"]),
        ("same", ["_sweep"]),
    ],
)
def test_what_the_last_program_goes_over(
    name: str, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept, if the sample was like the row; a frequent score at the border needs no search."""
    noise, called = torch.randn(1, 1600), []
    ours = {"sampled high": apart(noise, 50, 0, groups=16), "sampled low": apart(noise, 0, 50, groups=16)}

    def noted(function: str, original: Callable[..., object]) -> Callable[..., object]:
        return lambda *args: (called.append(function), original(*args))[1]

    for function in ("_finish", "_kept", "search", "_sweep"):
        monkeypatch.setattr(topk_rows, function, noted(function, getattr(topk_rows, function)))
    scores = ours[name] if name in ours else SCORES[name](noise)
    hold(scores, torch.tensor([1600], dtype=torch.int32), 100)
    assert called[called.index("_finish") + 1 :] == steps


def test_more_rows_than_programs() -> None:
    hold(torch.randn(9, 600), torch.randint(500, 601, (9,), dtype=torch.int32), 8, replace(SIZES, programs=4))


def test_k_larger_than_what_programs_keep() -> None:
    hold(torch.randn(2, 1000), torch.tensor([1000, 550], dtype=torch.int32), 600)


def test_slots() -> None:
    lengths = torch.tensor([30, 5, 64, 600, 700], dtype=torch.int32)
    hold(torch.randn(5, 700), lengths, 16, block=16)


@given(data=st.data())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_any_shape(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 700))
    offset, padding = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    levels = data.draw(st.sampled_from([1, 3, 1000]))
    lengths = data.draw(st.lists(st.integers(-1, columns + 2), min_size=rows, max_size=rows))
    buffer = torch.randint(0, levels, (rows * (columns + padding) + offset,)).float()
    scores = buffer[offset:].view(rows, columns + padding)[:, :columns]
    hold(scores, torch.tensor(lengths, dtype=torch.int32), data.draw(st.integers(1, 60)))


def test_tracers_see_the_shape() -> None:
    with FakeTensorMode():
        scores, lengths = torch.empty(3, 100), torch.empty(3, dtype=torch.int32)
        out = index_topk(scores, lengths, k=2048)
    assert isinstance(out, torch.Tensor)
    assert (out.shape, out.dtype) == ((3, 2048), torch.int32)


def test_the_operator_on_cpu_is_the_reference() -> None:
    scores, lengths = torch.randn(2, 50), torch.tensor([50, 9], dtype=torch.int32)
    table = pages(2, 50, 8)
    out = torch.ops.kernelweld.index_topk(scores, lengths, table, k=4, block=8)
    assert torch.equal(out, reference(scores, lengths, table, k=4, block=8))


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("'k'", {"k": 0}),
        ("'scores'", {"scores": torch.randn(100, 2).t()}),
        ("'scores'", {"scores": torch.randn(2, 100).double()}),
        ("'lengths'", {"lengths": torch.ones(2, dtype=torch.int64)}),
        ("'lengths'", {"lengths": torch.ones(3, dtype=torch.int32)}),
        ("'table'", {"table": torch.zeros(2, 3, dtype=torch.int32), "block": 32}),
        ("'table'", {"table": torch.zeros(2, 4), "block": 32}),
    ],
)
def test_what_would_be_read_wrongly_is_refused(words: str, change: dict[str, object]) -> None:
    operands = {"scores": torch.randn(2, 100), "lengths": torch.ones(2, dtype=torch.int32), "k": 4, **change}
    for call in (reference, module.kernel):
        with pytest.raises(BadOperand, match=words):
            call(**operands)  # type: ignore[operator]


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("name", SCORES)
def test_all_lengths_on_a_gpu(name: str) -> None:
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
    padded = torch.randn(len(LENGTHS), max(LENGTHS) + 13, device="cuda")[:, : max(LENGTHS)]
    hold(SCORES[name](padded), lengths, 2048, DEFAULT)
    hold(padded.copy_(SCORES[name](padded)), lengths.flip(0), 2048, DEFAULT, block=64)
    misaligned = SCORES[name](torch.randn(1, 5 * 40000 + 1, device="cuda")).flatten()[1:].view(5, 40000)
    hold(misaligned, torch.full((5,), 40000, dtype=torch.int32, device="cuda"), 2048, DEFAULT)


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 255, 256, 300])
def test_batches_on_a_gpu(rows: int) -> None:
    lengths = torch.randint(0, 33100, (rows,), dtype=torch.int32, device="cuda")
    hold(torch.randn(rows, 33000, device="cuda"), lengths, 2048, DEFAULT)


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("first", [False, True])
def test_a_graph_is_replayed_with_longer_rows(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the captured call is the first that needs counters."""
    scores = torch.randn(4, 163840, device="cuda")
    lengths = torch.full((4,), 100, dtype=torch.int32, device="cuda")
    index_topk(scores, lengths, k=2048)  # compiles
    if first:
        monkeypatch.setattr(module, "_rings", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = index_topk(scores, lengths, k=2048)
    for length in (163840, 3000, 20000, 163839, 2048, 130000):
        scores.normal_()
        lengths.fill_(length)
        graph.replay()
        assert torch.equal(out, reference(scores, lengths, k=2048))
        assert torch.equal(index_topk(scores, lengths, k=2048), out)
