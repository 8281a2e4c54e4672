"""Every chain of norm or gate, rotation, quantization and cache write is one weld, and computes what it says.

``make test`` takes a sample of the slow checks, ``make nightly`` all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from combinations import Chain, chains
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.codegen.crosscompile import compile_for
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.launch import choose
from kernelweld.passes.launcher import program_of
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.weld import Weld

PLAN = "canonicalize,dialect,raise,plan{keep-all=true}"
CHAINS = list(chains())


def graph_of(chain: Chain, device: str = "cpu") -> fx.GraphModule:
    """The chain as Inductor's post-grad passes see it."""
    mode = FakeTensorMode()
    inputs = [mode.from_tensor(t.to(device)) for t in chain.inputs()]
    with mode, torch.no_grad():
        functional = torch.func.functionalize(chain, remove="mutations")
        return make_fx(functional, decomposition_table=select_decomp_table())(*inputs)


def welds_of(chain: Chain, text: str = PLAN, device: str = "cpu") -> tuple[Weld, ...]:
    plan = Pipeline.from_text(text, strict=True).run(graph_of(chain, device)).context.plan
    assert plan is not None
    return plan.welds


def kinds(welds: tuple[Weld, ...]) -> list[list[str]]:
    return [[word.kind for chain in weld.chains for word in chain.words] for weld in welds]


def sampled(every: int) -> Iterator[ParameterSet]:
    """All chains; one of ``every`` of them in ``make test``."""
    for number, chain in enumerate(CHAINS):
        marks = () if number % every == 0 else pytest.mark.nightly
        yield pytest.param(chain, marks=marks, id=str(chain))


def test_there_are_many() -> None:
    assert len(set(map(str, CHAINS))) == len(CHAINS) > 2400


@pytest.mark.parametrize("chain", list(sampled(11)))
def test_a_chain_is_one_weld(chain: Chain) -> None:
    if chain.cuts:  # a rotation needs its head whole, and a tile has one dimension of features
        cut = len(chain.words) - len(chain.stages[-1].words)
        assert kinds(welds_of(chain)) == [chain.words[:cut], chain.words[cut:]]
    else:
        assert kinds(welds_of(chain)) == [chain.words]


@pytest.mark.parametrize("chain", list(sampled(31)))
def test_a_chain_holds_its_contract(chain: Chain) -> None:
    """In the interpreter; ``verify-welds`` drops a weld that does not."""
    assert len(welds_of(chain, f"{PLAN},verify-welds")) == 1 + chain.cuts


@pytest.mark.gpu
@pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0")
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_a_chain_holds_its_contract_on_a_gpu(chain: Chain) -> None:
    assert len(welds_of(chain, f"{PLAN},verify-welds", "cuda")) == 1 + chain.cuts


@pytest.mark.parametrize("chain", list(sampled(151)))
def test_a_chain_compiles_for_gpus_without_spills(chain: Chain) -> None:
    for weld in welds_of(chain):
        program = program_of(weld)[0]
        kernel: Kernel = emit(program, choose(program, packed=True))
        for compiled in compile_for(kernel, ("sm_90", "sm_100")):
            assert compiled.stack_bytes == 0, compiled
