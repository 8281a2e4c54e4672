"""Hand-written kernels of other libraries for the chains that they have one for.

Each function takes the inputs of its chain and returns the chain's results. Several write to their inputs, as
their libraries mean them to: an input that was read is lost. What a library computes besides (FlashInfer's
block quantization keeps the normed value) is part of its time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from chains import E4M3, EPS, GROUP, HEAD, Chain, Inputs, Tensor

Kernel = Callable[..., object]


@dataclass(frozen=True)
class Library:
    """The kernels of one library, by chain; ``installed`` says whether they can be called."""

    kernels: Mapping[str, Kernel]
    installed: Callable[[], bool]


def _outputs(x: Tensor, width: int, scales: int) -> tuple[Tensor, Tensor]:
    out = torch.empty(x.shape[0], width, dtype=E4M3, device=x.device)
    return out, torch.empty(x.shape[0], scales, device=x.device)


# --- vLLM: torch.ops._C ---


def _vllm_norm(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, EPS)
    return out


def _vllm_add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    torch.ops._C.fused_add_rms_norm(x, residual, weight, EPS)
    return residual, x


def _vllm_norm_static(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    out = torch.empty_like(x, dtype=E4M3)
    torch.ops._C.rms_norm_static_fp8_quant(out, x, weight, scale, EPS)
    return out


def _vllm_add_norm_static(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x, dtype=E4M3)
    torch.ops._C.fused_add_rms_norm_static_fp8_quant(out, x, residual, weight, scale, EPS)
    return residual, out


def _vllm_add_norm_group(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    out, scale = _outputs(x, x.shape[1], x.shape[1] // GROUP)
    torch.ops._C.rms_norm_per_block_quant(out, x, weight, scale, EPS, None, residual, GROUP, False)
    return residual, out, scale


def _vllm_norm_token(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    out, scale = _outputs(x, x.shape[1], 1)
    torch.ops._C.rms_norm_dynamic_per_token_quant(out, x, weight, scale, EPS, None, residual)
    return out, scale


def _vllm_add_norm_token(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return residual, *_vllm_norm_token(x, weight, residual)


def _vllm_silu(gate_up: Tensor) -> Tensor:
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    torch.ops._C.silu_and_mul(out, gate_up)
    return out


def _vllm_silu_group(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    width = gate_up.shape[1] // 2
    out, scale = _outputs(gate_up, width, width // GROUP)
    torch.ops._C.silu_and_mul_per_block_quant(out, gate_up, scale, GROUP, None, False)
    return out, scale


def _vllm_group(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = _outputs(x, x.shape[1], x.shape[1] // GROUP)
    torch.ops._C.per_token_group_fp8_quant(x, out, scale, GROUP, 1e-10, -448.0, 448.0, False, False, False)
    return out, scale


# --- FlashInfer ---


def _flashinfer_norm(x: Tensor, weight: Tensor) -> Tensor:
    import flashinfer

    return flashinfer.norm.rmsnorm(x, weight, EPS)


def _flashinfer_gemma_norm(x: Tensor, weight: Tensor) -> Tensor:
    import flashinfer

    return flashinfer.norm.gemma_rmsnorm(x, weight, EPS)


def _flashinfer_add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    import flashinfer

    flashinfer.norm.fused_add_rmsnorm(x, residual, weight, EPS)
    return residual, x


def _flashinfer_norm_static(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    import flashinfer

    out = torch.empty_like(x, dtype=E4M3)
    flashinfer.norm.rmsnorm_quant(out, x, weight, scale, EPS)
    return out


def _flashinfer_add_norm_static(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    import flashinfer

    out = torch.empty_like(x, dtype=E4M3)
    flashinfer.norm.fused_add_rmsnorm_quant(out, x, residual, weight, scale, EPS)
    return residual, out


def _flashinfer_add_norm_group(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Its scales lie column by column, each padded to four rows."""
    import flashinfer

    tokens, width = x.shape
    scale = torch.empty(width // GROUP, (tokens + 3) // 4 * 4, device=x.device)
    out, normed = torch.empty_like(x, dtype=E4M3), torch.empty_like(x)
    flashinfer.norm.fused_add_rmsnorm_fp8_block_quant(out, scale, normed, x, residual, weight, EPS)
    return residual, out, scale.t()[:tokens]


def _flashinfer_silu(gate_up: Tensor) -> Tensor:
    import flashinfer

    return flashinfer.activation.silu_and_mul(gate_up)


def _flashinfer_rope(q: Tensor, k: Tensor, cache: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    import flashinfer

    flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(positions, q, k, HEAD, cache, is_neox=True)
    return q, k


# --- Liger ---


def _liger_norm(x: Tensor, weight: Tensor, offset: float = 0.0) -> Tensor:
    from liger_kernel.transformers.functional import liger_rms_norm

    return liger_rms_norm(x, weight, EPS, offset=offset, casting_mode="gemma")


def _liger_gemma_norm(x: Tensor, weight: Tensor) -> Tensor:
    return _liger_norm(x, weight, 1.0)


def _liger_add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    from liger_kernel.transformers.functional import liger_fused_add_rms_norm

    normed, total = liger_fused_add_rms_norm(x, residual, weight, EPS, casting_mode="gemma")
    return total, normed


def _liger_silu(gate: Tensor, up: Tensor) -> Tensor:
    from liger_kernel.transformers.functional import liger_swiglu

    return liger_swiglu(gate, up)


def _liger_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """It takes ``[batch, heads, tokens, HEAD]`` as a view of memory in which tokens come first."""
    from liger_kernel.transformers.functional import liger_rope

    heads_first = (q[None].transpose(1, 2), k[None].transpose(1, 2))
    q_turned, k_turned = liger_rope(*heads_first, cos[None], sin[None])
    return q_turned.transpose(1, 2)[0], k_turned.transpose(1, 2)[0]


def _importable(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


LIBRARIES: Mapping[str, Library] = MappingProxyType(
    {
        "vllm": Library(
            {
                "norm 7168": _vllm_norm,
                "add + norm 7168": _vllm_add_norm,
                "norm + static fp8 7168": _vllm_norm_static,
                "add + norm + static fp8 7168": _vllm_add_norm_static,
                "add + norm + group fp8 7168": _vllm_add_norm_group,
                "add + norm + token fp8 7168": _vllm_add_norm_token,
                "norm + token fp8 7168": _vllm_norm_token,
                "norm + token fp8 1536": _vllm_norm_token,
                "silu gate 2048": _vllm_silu,
                "silu gate + group fp8 2048": _vllm_silu_group,
                "group fp8 7168": _vllm_group,
            },
            lambda: hasattr(torch.ops._C, "rms_norm"),
        ),
        "flashinfer": Library(
            {
                "norm 7168": _flashinfer_norm,
                "gemma norm 7168": _flashinfer_gemma_norm,
                "add + norm 7168": _flashinfer_add_norm,
                "norm + static fp8 7168": _flashinfer_norm_static,
                "add + norm + static fp8 7168": _flashinfer_add_norm_static,
                "add + norm + group fp8 7168": _flashinfer_add_norm_group,
                "silu gate 2048": _flashinfer_silu,
                "rope by position 32+8x128": _flashinfer_rope,
            },
            _importable("flashinfer"),
        ),
        "liger": Library(
            {
                "norm 7168": _liger_norm,
                "gemma norm 7168": _liger_gemma_norm,
                "add + norm 7168": _liger_add_norm,
                "silu gate 2048 apart": _liger_silu,
                "rope by table 32+8x128": _liger_rope,
            },
            _importable("liger_kernel"),
        ),
    }
)


def versions() -> dict[str, str]:
    """The versions of the libraries that are installed, by name."""
    names = {"vllm": "vllm", "flashinfer": "flashinfer-python", "liger": "liger-kernel"}
    installed = {d.name.replace("_", "-"): d.version for d in importlib.metadata.distributions()}
    return {name: installed[package] for name, package in names.items() if package in installed}


def peers_of(chain: str) -> tuple[dict[str, Kernel], list[str]]:
    """The kernels for ``chain`` by library, and the libraries that have one and are not installed."""
    having = {name: library for name, library in LIBRARIES.items() if chain in library.kernels}
    absent = [name for name, library in having.items() if not library.installed()]
    return {name: lib.kernels[chain] for name, lib in having.items() if name not in absent}, absent


def disagreement(chain: Chain, kernel: Kernel, inputs: Inputs) -> float:
    """The largest share of elements of a result in which ``kernel`` is more than rounding (two steps of the
    dtype, a neighbouring code) away from the chain in plain torch.
    """
    expected = _tensors(chain.function(*(x.clone() for x in inputs)))
    found = _tensors(kernel(*(x.clone() for x in inputs)))
    if [x.shape for x in found] != [x.shape for x in expected]:
        return 1.0
    return max(_share(*pair) for pair in zip(found, expected, strict=True))


def _tensors(results: object) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)  # type: ignore[return-value]


def _share(found: Tensor, expected: Tensor) -> float:
    steps = {torch.float32: 2.0**16, E4M3: 1.1}.get(expected.dtype, 2.1)  # scales are of rounded values
    step = steps * torch.finfo(expected.dtype).eps
    away = (found.float() - expected.float()).abs() > step * expected.float().abs() + 1e-3
    return float(away.float().mean())
