"""The welds of DeepSeek-V3.2's attention path against the kernels that vLLM fused by hand for it.

``latents`` does what ``fused_norm_rope`` does: norms of the query latent and of the latent, which goes with
its rotated key to a cache of bfloat16; LayerNorm, rotation and codes of the index key, to its pages.
``queries ...`` do what ``fused_q`` does: rotation of queries, and of index queries with their codes and
weights. Queries are their rotated part ``apart`` (what vLLM's kernel leaves in bfloat16), ``joined`` to the
absorbed part, or joined and in ``e4m3``. One rank of eight, one layer, pages in disorder.

Figures are microseconds a call: medians of CUDA-graph replays, contenders in turn, inputs rotating through
more memory than the L2 cache holds (``hot``: one set of inputs). Each contender must be one kernel, and all
must agree.

    python benchmarks/deepseek_packs.py [--tokens N ...] [--packs NAME ...] [--vllm KERNELS.PY] [--out FILE]

``--vllm`` names ``vllm/models/deepseek_v32/nvidia/kernels.py``; the rest of vLLM is not needed.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from chains import DEVICE, E4M3, Inputs, Tensor
from deepseek_chains import (
    CONFIG,
    EPS,
    HEADS,
    INDEX,
    INDEX_HEADS,
    NOPE,
    Q_RANK,
    RANK,
    ROPE,
    Latents,
    Queries,
    latent_inputs,
    query_inputs,
)
from hf_layers import environment, kernels
from torch import nn

import kernelweld
from kernelweld.codegen.timing import compared, rotations
from kernelweld.models.caches import PAGE

TOKENS = (1, 16, 64, 256, 2048)
TOPK = CONFIG.index_topk
#: How far results may be apart that are rounded at other places.
LIMITS = {"distance": 0.01, "one step": 0.2, "further": 0.02, "other scale": 0.05}
NOTES = {
    "latents": "vLLM's kernel also fills the buffer of selected positions with -1, 2048 a token; here the "
    "operator that selects does it.",
    "queries joined": "vLLM's kernel writes the rotated part alone; another kernel joins it to the absorbed.",
}

Function = Callable[..., Any]
Result = Tensor | tuple[Tensor, Tensor]  # values, or codes and a scale for each row of them
Results = dict[str, Result]


# --- vLLM's kernels ---


def load_vllm(path: Path) -> ModuleType:
    """vLLM's file of kernels by itself: all that it imports of vLLM is Triton."""
    stub = ModuleType("vllm.triton_utils")
    vars(stub).update(tl=tl, triton=triton)
    before = {name: sys.modules.get(name) for name in ("vllm", stub.__name__)}
    sys.modules.update({"vllm": ModuleType("vllm"), stub.__name__: stub})
    try:
        spec = importlib.util.spec_from_file_location("vllm_kernels", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, old in before.items():
            sys.modules.pop(name)
            if old is not None:
                sys.modules[name] = old
    return module


def vllm_latents(vllm: ModuleType, module: nn.Module, tokens: int) -> Function:
    """``fused_norm_rope`` on the arguments of ``Latents``."""
    assert isinstance(module, Latents)
    selected = torch.empty(tokens, TOPK, dtype=torch.int32, device=DEVICE)
    one = torch.ones(1, device=DEVICE)

    def run(
        latents: Tensor, keys: Tensor, down: Tensor, light: Tensor, rows: Tensor, at: Tensor, slots: Tensor
    ) -> object:
        q, latent, k_pe = down.split([Q_RANK, RANK, ROPE], -1)
        query = (q, module.q_norm.weight, EPS, latent, module.kv_norm.weight, EPS, k_pe, rows)
        index = (light[:, :INDEX], module.k_norm.weight, module.k_norm.bias, EPS, rows, selected)
        return vllm.fused_norm_rope(
            at,
            *query,
            *index,
            slot_mapping=slots,
            indexer_k_cache=keys,
            mla_kv_cache=latents,
            mla_k_scale=one,
        )

    return run


def vllm_queries(vllm: ModuleType, module: nn.Module, tokens: int) -> Function:
    """``fused_q`` on the arguments of ``Queries``."""
    assert isinstance(module, Queries)

    def run(
        q: Tensor, absorbed: Tensor, index_q: Tensor, light: Tensor, rows: Tensor, at: Tensor, scale: Tensor
    ) -> object:
        rope = q.view(-1, HEADS, NOPE + ROPE)[..., NOPE:]
        index = index_q.view(-1, INDEX_HEADS, INDEX)
        codes, weights, queries = vllm.fused_q(
            at,
            rope,
            rows,
            index,
            rows,
            absorbed.transpose(0, 1),
            scale,
            light[:, INDEX:],
            INDEX**-0.5,
            INDEX_HEADS**-0.5,
            quantize_mqa=module.form == "e4m3",
        )
        return queries, codes, weights

    return run


# --- comparison ---


def latent_results(result: Tensor, inputs: Inputs) -> Results:
    """What a call of ``Latents`` left, by name."""
    latents, keys, slots = inputs[0].flatten(0, 1), inputs[1].flatten(1), inputs[-1]
    page, row = slots // PAGE, slots % PAGE
    codes, scales = keys[:, : PAGE * INDEX].view(-1, PAGE, INDEX), keys[:, PAGE * INDEX :]
    return {
        "query latent": result,
        "latent": latents[slots, :RANK],
        "rotated key": latents[slots, RANK:],
        "index key": (codes[page, row].view(E4M3), scales.view(torch.float32)[page, row]),
    }


def query_results(result: tuple[Tensor, Tensor, Tensor], inputs: Inputs) -> Results:
    """What a call of ``Queries`` returned, by name."""
    queries, codes, weights = result
    found: Results = {"rotated query": queries[..., -ROPE:], "index query": (codes, weights)}
    return found | ({"absorbed query": queries[..., :RANK]} if queries.shape[-1] > ROPE else {})


def in_halves(values: Results) -> Results:
    """vLLM's results with turned pairs in halves: it leaves each value of a pair where it was."""
    return {
        name: x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        if isinstance(x, Tensor) and name.startswith("rotated")
        else x
        for name, x in values.items()
    }


def difference(ours: Result, other: Result) -> dict[str, float]:
    """Of values the distance, as a part of ``other``; of codes the shares one step apart and further. Rows of
    codes are compared where they have the same scale: rounding makes it another power of two at times.
    """
    if isinstance(ours, tuple):
        (a, scale), (b, expected) = ours, other
        same = (scale - expected).abs() <= expected.abs() / 256
        return {"other scale": 1 - same.float().mean().item(), **_apart(_place(a)[same], _place(b)[same])}
    assert isinstance(other, Tensor)
    if ours.dtype == E4M3:
        return _apart(_place(ours), _place(other))
    a, b = ours.double(), other.double()
    return {"distance": ((a - b).square().mean().sqrt() / b.square().mean().sqrt()).item()}


def _apart(a: Tensor, b: Tensor) -> dict[str, float]:
    steps = (a - b).abs()
    return {"one step": (steps == 1).float().mean().item(), "further": (steps > 1).float().mean().item()}


def _place(codes: Tensor) -> Tensor:
    """The place of each code among all codes in order."""
    bits = codes.contiguous().view(torch.uint8).int()
    return torch.where(bits < 128, bits, 128 - bits)


def differences(ours: Results, others: Results) -> dict[str, dict[str, float]]:
    """By result; raises if one is not rounding alone. ``others`` may leave results to other kernels."""
    found = {name: difference(ours[name], other) for name, other in others.items()}
    for name, own in found.items():
        if not all(share <= LIMITS[kind] for kind, share in own.items()):
            raise AssertionError(f"{name}: {own}")
    return found


@dataclass(frozen=True)
class Pack:
    """A weld: the module it comes from, arguments for it, vLLM's kernel for it, its results by name; it reads
    and writes ``moved`` bytes a token.
    """

    module: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    vllm: Callable[[ModuleType, Any, int], Function]
    results: Callable[[Any, Inputs], Results]
    moved: int


_INDEX_BYTES = 3 * INDEX_HEADS * INDEX + 6 * INDEX_HEADS


def _queries(form: str, written: int) -> Pack:
    moved = HEADS * (2 * ROPE + written) + _INDEX_BYTES
    return Pack(lambda: Queries(form), query_inputs, vllm_queries, query_results, moved)


PACKS: Mapping[str, Pack] = MappingProxyType(
    {
        "latents": Pack(
            Latents,
            latent_inputs,
            vllm_latents,
            latent_results,
            4 * (Q_RANK + RANK + ROPE) + 3 * INDEX + 4,
        ),
        "queries apart": _queries("apart", 2 * ROPE),
        "queries joined": _queries("joined", 4 * RANK + 2 * ROPE),
        "queries e4m3": _queries("e4m3", 3 * RANK + ROPE),
    }
)


def cloned(inputs: Inputs) -> Inputs:
    """The same arguments with caches of their own."""
    return tuple(x.clone() for x in inputs)


def agreement(pack: Pack, calls: Mapping[str, Function], inputs: Inputs) -> dict[str, Any]:
    """How far each contender is from the first."""
    found: dict[str, Results] = {}
    for name, call in calls.items():
        own = cloned(inputs)
        values = pack.results(call(*own), own)
        found[name] = in_halves(values) if name == "vllm" else values
    ours, *others = found
    return {name: differences(found[ours], found[name]) for name in others}


def measure(name: str, tokens: int, vllm: ModuleType | None) -> dict[str, Any]:
    """All figures of one pack at one number of tokens."""
    pack, start = PACKS[name], time.perf_counter()
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = pack.module().to(DEVICE)
    unfused = copy.deepcopy(module)
    calls: dict[str, Function] = {"kernelweld": kernelweld.fuse(module, dynamic=False, strict=True)}
    if vllm is not None:
        calls["vllm"] = pack.vllm(vllm, module, tokens)
    first = pack.inputs(tokens)
    names = {key: kernels(partial(call, *first)) for key, call in calls.items()}
    if several := {key: own for key, own in names.items() if len(own) != 1}:
        raise AssertionError(f"{name} @ {tokens}: not one kernel: {several}")
    found = agreement(pack, {**calls, "unfused": unfused}, first)
    sets = [first, *(pack.inputs(tokens) for _ in range(rotations(tokens * pack.moved) - 1))]
    return {
        "us": compared(calls, sets),
        "hot_us": compared(calls, [first] * len(sets)),
        "kernels": {key: own[0] for key, own in names.items()},
        "agreement": found,
        "seconds": round(time.perf_counter() - start, 1),
    }


def print_row(name: str, tokens: int, record: Mapping[str, Any]) -> None:
    """One line: the time of each contender."""
    hot = record["hot_us"]
    texts = [f"{key} {value:7.2f} (hot {hot[key]:7.2f})" for key, value in record["us"].items()]
    print(f"{name:16}{tokens:6}  {'  '.join(texts)}  {record['seconds']} s", flush=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS))
    parser.add_argument("--packs", nargs="*", choices=list(PACKS), default=list(PACKS))
    parser.add_argument("--vllm", type=Path, help="vLLM's file of kernels for this model")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/deepseek_packs.json"))
    arguments = parser.parse_args()
    vllm = arguments.vllm and load_vllm(arguments.vllm)
    notes = NOTES if vllm else {"vllm": "absent: its file of kernels was not given"}
    digest = arguments.vllm and hashlib.sha256(arguments.vllm.read_bytes()).hexdigest()
    results: dict[str, Any] = {"environment": environment(), "notes": notes, "vllm": digest, "packs": {}}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.packs:
        for tokens in arguments.tokens:
            record = results["packs"][f"{name} @ {tokens}"] = measure(name, tokens, vllm)
            print_row(name, tokens, record)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
