"""The operators that are known, by name: their libraries need not be loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import fx

from kernelweld.passes.dialect import caches, fp4, gates, norms, quants, rotary
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call

#: Makes the nodes of a call and returns those that take the place of the arguments it writes to, in their
#: order, absent ones left out. Raises Miss where words do not say what the call computes.
Expand = Callable[[Call, Builder], Sequence[fx.Node]]

OPERATORS: Mapping[str, Expand] = MappingProxyType(
    {
        "_C.rms_norm": norms.rms_norm,
        "_C.fused_add_rms_norm": norms.fused_add_rms_norm,
        "_C.rms_norm_static_fp8_quant": norms.rms_norm_static_fp8_quant,
        "_C.fused_add_rms_norm_static_fp8_quant": norms.fused_add_rms_norm_static_fp8_quant,
        "_C.rms_norm_dynamic_per_token_quant": norms.rms_norm_dynamic_per_token_quant,
        "_C.rms_norm_per_block_quant": norms.rms_norm_per_block_quant,
        "_C.static_scaled_fp8_quant": quants.static_scaled_fp8_quant,
        "_C.dynamic_per_token_scaled_fp8_quant": quants.dynamic_per_token_scaled_fp8_quant,
        "_C.per_token_group_fp8_quant": quants.per_token_group_fp8_quant,
        "_C.per_token_group_fp8_quant_packed": quants.per_token_group_fp8_quant_packed,
        "_C.static_scaled_int8_quant": quants.static_scaled_int8_quant,
        "_C.dynamic_scaled_int8_quant": quants.dynamic_scaled_int8_quant,
        "_C.per_token_group_quant_int8": quants.per_token_group_quant_int8,
        "_C.silu_and_mul": gates.silu_and_mul,
        "_C.silu_and_mul_quant": gates.silu_and_mul_quant,
        "_C.scaled_fp4_quant": fp4.scaled_fp4_quant,
        "_C.scaled_fp4_quant.out": fp4.scaled_fp4_quant_out,
        "_C.silu_and_mul_nvfp4_quant": fp4.silu_and_mul_nvfp4_quant,
        "_C.silu_and_mul_per_block_quant": gates.silu_and_mul_per_block_quant,
        "_C.rotary_embedding": rotary.rotary_embedding,
        "vllm.flashinfer_rotary_embedding": rotary.flashinfer_rotary_embedding,
        "_C_cache_ops.reshape_and_cache_flash": caches.reshape_and_cache_flash,
        "_C_cache_ops.concat_and_cache_mla": caches.concat_and_cache_mla,
        "_C_cache_ops.indexer_k_quant_and_cache": caches.indexer_k_quant_and_cache,
    }
)
