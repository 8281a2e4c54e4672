"""Files of welds of vLLM's operators, for fixed sizes and for any number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config
import torch.ao.quantization.fx._decomposed
from cases import more_cases
from graphs import graph_of
from torch._dynamo.exc import UserError
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from vllm_operators import define

from kernelweld.passes.verification.specimen import Specimen, specimen

Files = Callable[..., list[object]]
Check = Callable[..., None]

PLAN = "canonicalize,dialect,raise,plan{keep-all=true}"
FEW = ("latents 656", "cache blocks", "keys ue8m0", "packed aligned", "norm block bounded")


@pytest.fixture(autouse=True)
def functionalized_as_in_vllm() -> Iterator[None]:
    define()
    with torch._inductor.config.patch(enable_auto_functionalized_v2=False):
        yield


def welds_of(name: str, *, dynamic: bool) -> list[Specimen]:
    """The welds of one program; none where its first size cannot be a symbol."""
    case = more_cases()[name]
    try:
        graph = graph_of(case.fn, case.inputs, dynamic=(0,) if dynamic else ())
    except (ConstraintViolationError, UserError):
        assert dynamic
        return []
    plan = graph.passed(PLAN).context.plan
    assert plan is not None
    return [specimen(weld) for weld in plan.welds]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([n for n in more_cases() if n in FEW], id="a few"),
        pytest.param(list(more_cases()), marks=pytest.mark.nightly, id="all"),
    ],
)
@pytest.mark.slow
def test_their_tests_pass_alone(
    names: list[str],
    tmp_path: Path,
    files: Files,
    passes_alone: Check,
    ruff_clean: Check,
    same_as_the_nodes: Callable[..., bool],
) -> None:
    welds = [one for name in names for dynamic in (False, True) for one in welds_of(name, dynamic=dynamic)]
    assert any(one.symbols for one in welds)
    modules = files(welds, tmp_path)
    assert all(same_as_the_nodes(one, module) for one, module in zip(welds, modules, strict=True))
    passes_alone(tmp_path)
    ruff_clean(tmp_path)


def test_a_size_that_the_kernel_needs_is_asked_for(tmp_path: Path, files: Files) -> None:
    """Keys and values of one tensor: of its first size, a symbol, the kernel writes to the second."""
    (one,) = welds_of("cache halves read", dynamic=True)
    (module,) = files([one], tmp_path)
    arguments = module.draw(0, "cpu", num_rows=1)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"num_rows \(cache.shape\[0\]\) has to be 2 or more, not 1"):
        module._weld(**arguments)  # type: ignore[attr-defined]


def test_operators_of_torch_are_spelled_out(tmp_path: Path, files: Files, passes_alone: Check) -> None:
    """They would have to be registered by an import of torch's quantization."""
    operators = torch.ops.quantized_decomposed

    def chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = x.abs().amax(-1, keepdim=True) / 127.0
        zero = torch.zeros(scale.shape, dtype=torch.int64)
        token = operators.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return token, scale, operators.quantize_per_tensor(y * x, 0.037, 0, -128, 127, torch.int8)

    plan = graph_of(chain, [torch.randn(5, 256), torch.randn(5, 256)]).passed(PLAN).context.plan
    assert plan is not None
    modules = files([specimen(weld) for weld in plan.welds], tmp_path)
    texts = [Path(str(module.__file__)).read_text() for module in modules]  # type: ignore[attr-defined]
    assert any("torch.round(" in text for text in texts)
    assert not any("torch.ops.quantized_decomposed" in text for text in texts)
    passes_alone(tmp_path)
