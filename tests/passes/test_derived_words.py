"""Words of other distributions as steps of a row task: what their references may be, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import fx

from kernelweld.codegen.task import Apply
from kernelweld.integrations.aot import capture
from kernelweld.ir import Word, vocabulary
from kernelweld.passes.base import PassContext
from kernelweld.passes.launcher import program_of
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.raise_words import replace
from kernelweld.passes.tasks import derived
from kernelweld.passes.verification.check import check_weld
from kernelweld.passes.weld import WeldPlan
from kernelweld.patterns.pattern import Match

bf16 = torch.bfloat16
Tensor = torch.Tensor


class OfOthers(Word):
    """A word that another distribution could have."""

    kind = "of_others"
    operands = ("x",)

    def reference(self, *tensors: Tensor | None) -> Tensor:
        return self.of(*tensors)  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class Softmax(OfOthers):
    """A row of a router."""

    kind = "of_others_softmax"

    def of(self, x: Tensor) -> Tensor:
        return torch.softmax(x.float(), -1).to(x.dtype)


@dataclass(frozen=True)
class Softcap(OfOthers):
    """Gemma's: elementwise, with a number."""

    kind = "of_others_softcap"

    cap: float = 30.0

    def of(self, x: Tensor) -> Tensor:
        return (self.cap * torch.tanh(x.float() / self.cap)).to(x.dtype)


@dataclass(frozen=True)
class TanhNorm(OfOthers):
    """Dynamic tanh: weights that broadcast, one of them absent."""

    kind = "of_others_tanh_norm"
    operands = ("x", "alpha", "weight", "bias?")

    def of(self, x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.tanh(x.float() * alpha.float()) * weight.float()
        return (y if bias is None else y + bias.float()).to(x.dtype)


@dataclass(frozen=True)
class Centred(OfOthers):
    """Statistics with and without the dimension that they reduce, and the width as a number."""

    kind = "of_others_centred"

    def of(self, x: Tensor) -> Tensor:
        h = x.float()
        mean = h.sum(-1) / x.shape[-1]
        return ((h - mean[..., None]) / (h.abs().amax(-1, keepdim=True).clamp(0.5, 100.0) + 1e-3)).to(x.dtype)


@dataclass(frozen=True)
class Magnitude(OfOthers):
    """A statistic of each row is the result."""

    kind = "of_others_magnitude"

    def of(self, x: Tensor) -> Tensor:
        return x.float().abs().mean(-1)


@dataclass(frozen=True)
class Odd(OfOthers):
    """A word whose reference is that of a case of ``REFUSED``."""

    kind = "of_others_odd"

    case: str

    def of(self, x: Tensor) -> object:
        return REFUSED[self.case][0](x)


#: References that are no row task of a float32 matrix of 4 by 4, and why.
REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "sequence": (lambda x: x.cumsum(-1), "calls aten.cumsum.default"),
    "order": (lambda x: x.flip(-1), "calls prims.rev.default"),
    "columns": (lambda x: x - x.mean(0, keepdim=True), "calls aten.mean.dim"),
    "double": (lambda x: (x.double() * 2).float(), "computes in float64"),
    "lacking": (lambda x: x - x.mean(-1), "mixes rows with a statistic of them that has no last dimension"),
    "again": (lambda x: x * x.amax(-1, keepdim=True).expand(4, 4).sum(-1, keepdim=True), "calls aten.expand"),
    "same": (lambda x: x, "returns an operand as it is"),
    "several": (lambda x: (x + 1, x - 1), "has several results"),
    "dtype": (lambda x: (x + 1).to(bf16), "gives bfloat16 [4, 4] where the graph has float32 [4, 4]"),
    "shape": (lambda x: x.sum(-1), "gives float32 [4] where the graph has float32 [4, 4]"),
    "defect": (lambda x: x.no_such_method(), "raises AttributeError: 'FakeTensor' object has no attribute"),
}


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The words of this module as those of a distribution."""
    classes = (Softmax, Softcap, TanhNorm, Centred, Magnitude, Odd)
    points = [EntryPoint(cls.kind, f"{__name__}:{cls.__name__}", "") for cls in classes]
    monkeypatch.setattr("kernelweld.ir.vocabulary.entry_points", lambda group: points)
    vocabulary.vocabulary.cache_clear()
    yield
    monkeypatch.undo()
    vocabulary.vocabulary.cache_clear()


def planned(gm: fx.GraphModule, passes: str = "plan{keep-all=true}") -> WeldPlan:
    context = PassContext()
    for step in Pipeline.from_text(passes).passes:
        step.run(gm, context)
    assert context.plan is not None
    return context.plan


def raised(gm: fx.GraphModule, word: Word, out: fx.Node) -> fx.GraphModule:
    """``gm`` with all that ``out`` is computed by as one call of ``word`` on the first inputs."""
    inputs = tuple(gm.graph.find_nodes(op="placeholder"))[: len(word.operands)]
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    replace(Match(word, inputs, (out,), tuple(calls[: calls.index(out) + 1])))
    gm.graph.eliminate_dead_code()
    return gm


def canonical(fn: Callable[..., object], *args: Tensor) -> tuple[fx.GraphModule, fx.Node]:
    """The graph of ``fn`` and its first output."""
    gm = capture(fn, args).graphs[0]
    Pipeline.from_text("canonicalize").run(gm)
    return gm, gm.graph.find_nodes(op="output")[0].args[0][0]  # type: ignore[index]


def alone(word: Word, *args: Tensor) -> fx.GraphModule:
    """The graph of ``word`` and nothing else."""
    gm, out = canonical(lambda *tensors: word.reference(*tensors), *args)
    return raised(gm, word, out)


@pytest.mark.parametrize(
    ("word", "dtype", "shapes"),
    [
        (Softmax(), torch.float32, [(5, 96)]),
        (Softmax(), bf16, [(2, 3, 64)]),
        (Softcap(), torch.float32, [(5, 96)]),
        (Softcap(2.5), bf16, [(3, 4, 100)]),
        (TanhNorm(), bf16, [(5, 96), (1,), (96,), (96,)]),
        (Centred(), torch.float32, [(5, 96)]),
        (Centred(), bf16, [(2, 3, 80)]),
        (Magnitude(), bf16, [(2, 3, 80)]),
    ],
    ids=str,
)
def test_the_kernel_is_the_reference(word: Word, dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    (weld,) = planned(alone(word, *(torch.randn(shape, dtype=dtype) for shape in shapes))).welds
    assert weld.name == word.kind
    assert not any(isinstance(step, Apply) for task in program_of(weld)[0].tasks for step in task.steps)
    assert all(check_weld(weld, seed).holds for seed in range(3))


def test_an_operand_may_be_absent() -> None:
    x, alpha, weight = (torch.randn(shape, dtype=bf16) for shape in ((5, 96), (1,), (96,)))
    gm, out = canonical(lambda *tensors: TanhNorm().reference(*tensors, None), x, alpha, weight)
    (weld,) = planned(raised(gm, TanhNorm(), out)).welds
    assert weld.steps[0].args[3] is None
    assert check_weld(weld).holds


def test_rows_may_be_symbols() -> None:
    x = torch.randn(6, 96, dtype=bf16)
    torch._dynamo.mark_dynamic(x, 0)
    gm = capture(Centred().reference, (x,)).graphs[0]
    Pipeline.from_text("canonicalize").run(gm)
    size, tensor = gm.graph.find_nodes(op="placeholder")
    (out,) = gm.graph.find_nodes(op="output")[0].args[0]
    nodes = tuple(node for node in gm.graph.nodes if node.op == "call_function")
    assert isinstance(size.meta["val"], torch.SymInt)
    replace(Match(Centred(), (tensor,), (out,), nodes))
    gm.graph.eliminate_dead_code()
    (weld,) = planned(gm).welds
    assert check_weld(weld).holds


def test_a_word_may_cover_the_heads_that_others_see_one_by_one() -> None:
    def chain(x: Tensor, w: Tensor) -> Tensor:
        heads = Centred().reference(x).view(6, 2, 16)
        return heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    gm, _ = canonical(chain, torch.randn(6, 32), torch.randn(16))
    Pipeline.from_text("raise").run(gm)
    (view,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.reshape.default)
    (weld,) = planned(raised(gm, Centred(), view.args[0])).welds  # type: ignore[arg-type]
    (task,) = program_of(weld)[0].tasks
    assert (weld.name, task.heads) == ("of_others_centred_rms_norm", 2)
    assert all(check_weld(weld, seed).holds for seed in range(3))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_row_task_is_left_with_the_reason(case: str) -> None:
    gm, out = canonical(lambda x: x * 2.0 + 1.0, torch.randn(4, 4))
    found = planned(raised(gm, Odd(case), out))
    assert found.welds == ()
    (miss,) = found.near_misses
    assert (miss.kind, miss.rule) == ("of_others_odd", "legality")
    assert miss.reason.startswith("not welded: the reference of of_others_odd ")
    assert REFUSED[case][1] in miss.reason
    assert miss.remedy == "Write its reference in elementwise steps and reductions of the last dimension."


def test_equal_calls_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "_KNOWN", {})
    traced: list[object] = []
    trace = derived.trace
    monkeypatch.setattr(derived, "trace", lambda *call: traced.append(call) or trace(*call))
    for cap, rows in ((2.5, 3), (2.5, 3), (3.0, 3), (2.5, 4)):
        assert len(planned(alone(Softcap(cap), torch.randn(rows, 96))).welds) == 1
    assert len(traced) == 3
