from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from kernelweld.passes.merge_gemms import SkippedGroup, find_siblings, prepare


class Model(nn.Module):
    """Linears `a`, `b`, `c` of one kind, and a forward given as a function."""

    def __init__(self, forward: Callable[..., Any], bias: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16, bias=bias) for _ in range(3))
        self._forward = forward

    def forward(self, *args: Any) -> Any:
        return self._forward(self, *args)


def found(
    model: nn.Module, *args: Any
) -> tuple[tuple[tuple[str, ...], ...], list[tuple[tuple[str, ...], str]]]:
    siblings = find_siblings(model, args)
    return siblings.groups, [(skipped.paths, skipped.reason) for skipped in siblings.skipped]


SAME: dict[str, Callable[..., Any]] = {
    "one tensor": lambda m, x: m.a(x) + m.b(x) * 2,
    "by keyword": lambda m, x: m.a(input=x) + m.b(x) * 2,
    "rows renumbered": lambda m, x: m.a(x.view(-1, 16)) + m.b(x).view(-1, 16),
    "conversion that does nothing": lambda m, x: m.a(x.float()) + m.b(x.contiguous()),
    "dropout that does nothing": lambda m, x: m.a(F.dropout(x, 0.1, m.training)) + m.b(x),
    "equal strided views": lambda m, x: m.a(x[..., 0:1, :]) + m.b(x[..., 0:1, :]),
    "the other result in between": lambda m, x: m.b(x) * m.a(x).softmax(-1),
    "reshaped results": lambda m, x: m.a(x).view(2, 3, 4, 4) + m.b(x).unflatten(-1, (4, 4)),
    "flattened by reshape": lambda m, x: m.a(x).reshape(-1) + m.b(x).flatten(),
    "weight's dtype is looked at": lambda m, x: m.a(x.to(m.a.weight.dtype)) + m.b(x) * m.b.weight.shape[0],
}

DIFFERENT: dict[str, Callable[..., Any]] = {
    "another tensor": lambda m, x: m.a(x) + m.b(x * 1.0),
    "written in place": lambda m, x: m.a(x) + m.b(x.mul_(2)),
    "another dtype": lambda m, x: m.a(x.double().float()) + m.b(x),
    "other rows": lambda m, x: m.a(x[:1]) + m.b(x[1:]),
    "transposed": lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1) + m.b(x),
    "other strides": lambda m, x: m.a(x.expand(2, 3, 16)) + m.b(x[:1]),
    "branch not taken": lambda m, x: m.a(x) + (m.b(x) if m.training else 0),
    "one after the other": lambda m, x: m.b(m.a(x)),
}


@pytest.mark.parametrize("name", SAME)
def test_linears_on_the_same_rows_are_siblings(name: str) -> None:
    groups, skipped = found(Model(SAME[name]).eval(), torch.randn(2, 3, 16))
    assert [sorted(group) for group in groups] == [["a", "b"]]
    assert skipped == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_linears_are_not(name: str) -> None:
    assert found(Model(DIFFERENT[name]).eval(), torch.randn(2, 3, 16)) == ((), [])


def test_groups_follow_the_order_of_calls() -> None:
    groups, _ = found(Model(lambda m, x: m.c(x) + m.a(x) + m.b(x)), torch.randn(2, 16))
    assert groups == (("c", "a", "b"),)


def test_experts_join_only_when_they_run() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: torch.Tensor, chosen: tuple[int, ...]) -> torch.Tensor:
            return torch.stack([self.experts[index](x) for index in chosen]).sum(0)

    model, x = Experts(), torch.randn(2, 16)
    assert found(model, x, (0, 2)) == ((("experts.0", "experts.2"),), [])
    assert found(model, x, (1,)) == ((), [])


class Scaled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def subclass(model: Model) -> None:
    model.a = Scaled(16, 16, bias=False)


def hooked(model: Model) -> None:
    model.a.register_forward_hook(lambda module, args, result: result * 2)


def patched(model: Model) -> None:
    model.a.forward = lambda x: F.linear(x, model.a.weight)


def parametrized(model: Model) -> None:
    nn.utils.parametrizations.weight_norm(model.a)


def tied(model: Model) -> None:
    model.other = nn.Embedding(16, 16)
    model.other.weight = model.a.weight


def shared_module(model: Model) -> None:
    model.other = model.a


def transposed(model: Model) -> None:
    model.a.weight = nn.Parameter(torch.randn(16, 16).t())


def flat(model: Model) -> None:
    model.a.weight = nn.Parameter(torch.randn(2, 16, 16)[0])


def cached(model: Model) -> None:
    model.absorbed = model.a.weight.detach().view(4, 4, 16)


def own_class(model: Model) -> None:
    class Weight(nn.Parameter):
        pass

    model.a.weight = Weight(torch.randn(16, 16))


def in_shared_memory(model: Model) -> None:
    model.a.share_memory()


def with_inference_weight(model: Model) -> None:
    with torch.inference_mode():
        weight = nn.Parameter(torch.randn(16, 16), requires_grad=False)
    model.a._parameters["weight"] = weight


REFUSED: list[tuple[Callable[[Model], None], str]] = [
    (subclass, "is a Scaled, not exactly nn.Linear"),
    (hooked, "has hooks"),
    (patched, "has a forward of its own on the instance"),
    (parametrized, "is a ParametrizedLinear, not exactly nn.Linear"),
    (tied, "shares a parameter: a.weight = other.weight"),
    (shared_module, "shares a parameter: a.weight = other.weight"),
    (transposed, "weight is not contiguous"),
    (flat, "weight is a view of a larger storage"),
    (cached, "weight shares its storage with another tensor"),
    (own_class, "weight is a Weight, not a plain parameter"),
    (in_shared_memory, "weight lies in shared memory"),
    (with_inference_weight, "weight was created in inference mode"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[change.__name__ for change, _ in REFUSED])
def test_unusual_linears_are_refused_and_the_others_merge(change: Any, reason: str) -> None:
    model, x = Model(lambda m, x: m.a(x) + m.b(x) * m.c(x)).eval(), torch.randn(2, 16)
    change(model)
    kind = type(model.a)
    report = prepare(model, (x,))
    assert [group.paths for group in report.merged] == [("b", "c")]
    assert report.skipped == (SkippedGroup(("a",), reason),)
    assert type(model.a) is kind


OBJECTIONS: dict[str, Callable[..., Any]] = {
    "its weight is also read outside of it, by linear": lambda m, x: (
        m.a(x) + m.b(x) + F.linear(x, m.a.weight)
    ),
    "its weight is also read outside of it, by t": lambda m, x: m.a(x) + m.b(x) + x @ m.a.weight.t(),
    "its weight is also read outside of it, by cat": lambda m, x: (
        m.a(x) + m.b(x) + torch.cat([m.a.weight])[0]
    ),
    "its result is viewed in a way that only contiguous memory allows": lambda m, x: (
        m.a(x).view(-1).sum() + m.b(x)
    ),
    "its result leaves the model as it is": lambda m, x: {"a": m.a(x).view(2, 4, 4), "b": m.b(x) * 2},
    "runs 2 times in one forward": lambda m, x: m.a(x) + m.b(x) + m.a(x * 2),
    "runs 3 times in one forward": lambda m, x: m.a(x) + m.b(x) + m.a(x) * m.a(x),
}


@pytest.mark.parametrize("reason", OBJECTIONS)
def test_uses_that_forbid_a_merge(reason: str) -> None:
    model, x = Model(OBJECTIONS[reason]).eval(), torch.randn(2, 16)
    assert found(model, x) == ((), [(("a",), reason)])


def test_results_for_foreign_operators_stay_contiguous() -> None:
    with torch.library._scoped_library("kernelweld_test", "FRAGMENT") as library:
        library.define("raw(Tensor x) -> Tensor")
        library.impl("raw", torch.clone, "CompositeExplicitAutograd")
        model = Model(lambda m, x: torch.ops.kernelweld_test.raw(m.a(x)[..., :4]).sum() + m.b(x))
        groups, ((paths, reason),) = found(model, torch.randn(2, 16))
    assert (groups, paths) == ((), ("a",))
    assert reason == "its result goes to kernelweld_test.raw, which may need it contiguous"


def test_kinds_do_not_mix() -> None:
    model = Model(lambda m, x: m.a(x) + m.b(x) * m.c(x) + m.d(x))
    model.c, model.d = nn.Linear(16, 16), nn.Linear(16, 16)
    assert found(model, torch.randn(2, 16)) == ((("a", "b"), ("c", "d")), [])


def test_a_projection_in_float32_is_no_sibling() -> None:
    model = Model(lambda m, x: m.a(x) + m.b(x) + m.c(x.float())).to(torch.bfloat16)
    model.c.float()
    assert found(model, torch.randn(2, 16, dtype=torch.bfloat16)) == ((("a", "b"),), [])


def depends_on_data(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.a(x) + model.b(x) if x.sum() > 0 else x


def test_a_model_that_depends_on_data_is_left_alone() -> None:
    model, x = Model(depends_on_data), torch.ones(2, 16)
    report = prepare(model, (x,))
    assert report.merged == ()
    ((paths, reason),) = [(skipped.paths, skipped.reason) for skipped in report.skipped]
    assert paths == ()
    assert reason.startswith("the model does not run on fake tensors: ")
    assert type(model.a) is nn.Linear
    model(x)


def test_failures_print_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(m: Model, x: torch.Tensor) -> torch.Tensor:
        return m.a(x) + m.b(x) @ x

    assert find_siblings(Model(wrong), (torch.ones(2, 16),)).groups == ()
    assert caplog.text == ""
    assert not torch.compiler.is_compiling()


def test_recording_has_no_side_effect() -> None:
    def stateful(m: Model, x: torch.Tensor, cache: dict[str, Any]) -> torch.Tensor:
        cache["rows"].append(m.a(x).cos())
        cache["sum"] += 1
        m.steps += 1
        m.last = x
        m.calls = [*m.calls, 1]
        return F.dropout(m.a(x) + m.b(x), 0.5, training=True) + torch.rand(2, 16)

    model, x = Model(stateful), torch.randn(2, 16)
    model.register_buffer("steps", torch.zeros(()))
    model.calls = []
    cache: dict[str, Any] = {"rows": [], "sum": torch.zeros(3)}
    state, names = torch.get_rng_state(), set(model.__dict__)
    assert find_siblings(model, (x, cache)).skipped[0].reason == "runs 2 times in one forward"
    assert torch.equal(torch.get_rng_state(), state)
    assert cache["rows"] == []
    assert_close(cache["sum"], torch.zeros(3))
    assert_close(model.steps, torch.zeros(()))
    assert set(model.__dict__) == names
    assert model.calls == []
    assert not model.a._forward_hooks and not model.a._forward_pre_hooks


def test_arguments_made_in_inference_mode_may_be_written() -> None:
    def write(m: Model, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        first = m.a(cache)
        return first + m.b(cache.copy_(x)) + m.c(cache)

    model = Model(write)
    with torch.inference_mode():
        x, cache = torch.randn(2, 16), torch.zeros(2, 16)
    assert found(model, x, cache) == ((("b", "c"),), [])
    assert_close(cache, torch.zeros(2, 16))


def test_the_class_forward_is_recorded_below_a_compiled_one() -> None:
    model, x = Model(lambda m, x: m.a(x) + m.b(x)), torch.randn(2, 16)
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    assert found(model, x) == ((("a", "b"),), [])


def test_what_is_compiled_is_recorded() -> None:
    def branch(m: Model, x: torch.Tensor) -> torch.Tensor:
        return m.a(x) + m.b(x) if torch.compiler.is_compiling() else m.c(x)

    assert found(Model(branch), torch.randn(2, 16)) == ((("a", "b"),), [])


@functools.lru_cache
def table(width: int) -> tuple[torch.Tensor, ...]:
    return torch.arange(width, dtype=torch.float32), torch.ones(width)


@functools.cache
def doubled(width: int) -> list[torch.Tensor]:
    return [torch.full((width,), 2.0)]


@functools.lru_cache
def kept(width: int) -> object:
    return object()


def test_no_fake_tensor_stays_in_a_function_cache() -> None:
    model, x = (
        Model(lambda m, x: (m.a(x) + m.b(x) + table(16)[0]) * doubled(16)[0] if kept(16) else x),
        torch.randn(2, 16),
    )
    before = kept(1)
    assert found(model, x)[0] == (("a", "b"),)
    assert_close(model(x), (model.a(x) + model.b(x) + torch.arange(16)) * 2)
    assert kept(1) is before
