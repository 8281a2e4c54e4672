"""The unit tests of vLLM's passes as graphs of ours: what is joined there is welded here.

A case is the graph that vLLM hands to a configured pass, in one of its spellings. "Equal" is one weld for
each match that vLLM counts, and none where it counts none. vLLM's tests are those of tests/compile/passes.

test_fusion, fp8: test_rms_quant
    Equal; a norm without codes behind it is a weld too.
test_fusion, codes decomposed (-quant_fp8): test_rms_quant
    Differs: the first norm, which has an activation alone before it, is left to Inductor, whose one kernel
    for all of it is a launch less. Behind a linear layer it is equal.
test_fusion, NVFP4: test_rms_quant, tests/dialect/test_fp4
    Equal for scales in rows and in full tiles. Differs for tiles that the rows do not fill: not welded.
test_fusion, weights of another dtype (no match there): test_rms_quant
    Differs: ``vllm_ir`` norms are welded with their own rounding. Equal for ``_C`` norms: not welded.
test_fusion, operators of AITER; gated norms on ROCm:
    Differs: those operators are not known here, so there are no cases.
test_silu_mul_quant_fusion: test_act_quant, tests/dialect/test_fp4
    Equal; groups also behind the decomposed gate.
test_silu_mul_quant_manual_fusion: calls of the model, no graph.
distributed/test_fusion_all_reduce: test_collectives
    Differs: the norm behind each of four sums is a weld, with its codes. The sum over GPUs is not in it.
test_fusion_attn, test_mla_attn_quant_fusion: test_attention_quant
    Differs: the codes are a weld behind attention, whose kernel is not ours to change.
test_mla_rope_kvcache_cat_fusion: test_rope_cache
    Differs: both rotations are a weld, the write to the cache is a call behind it, for its cache is no input
    of the graph.
test_qk_norm_rope_fusion: test_rope_cache
    Equal; also decomposed and partial rotations, and heads of any size.
test_rope_kvcache_fusion, test_rocm_aiter_qk_norm_rope_kvcache_fusion: test_rope_cache
    Differs: norms and rotations are a weld, the write is a call behind it as above. Where caches and slots
    are inputs it is in the weld (tests/dialect/test_chains).
test_fuse_mla_dual_rms_norm: test_norm_shapes
    Equal: two row tasks of one launch.
test_double_aiter_rms_quant_fusion: test_norm_shapes
    Equal, and one launch; there it is two.
test_rmsnorm_reshape_fusion: test_norm_shapes
    Equal: sum and norm are a weld, whose codes the view does not hide.
test_fuse_act_padding: test_norm_shapes
    Differs: three welds for three matches, but the zeros are written by Inductor.
test_noop_elimination, test_split_coalescing, test_scatter_split_replace: test_views
    Equal in what they are for: the weld behind such views. What is no split, and no slice of everything,
    keeps its values.
test_functionalization: test_views, test_fused, tests/dialect/test_whole
    Equal in what it is for: no copies of what is written. Calls without words stay functional.
test_pass_manager, test_vllm_fusion_pattern_matcher_pass: vLLM's own machinery.

Faults of vLLM's passes, by their numbers there: #50903, #28042, #33295, #40587, #48671, #53115
test_rope_cache; #48324, #44694 test_rms_quant; #29631, #23953 test_views; #33945 test_attention_quant;
#42411, #42543, #52383 test_norm_shapes; #44574, #24542, #56041 test_effects; #33255
tests/dialect/test_aligned.
"""

from __future__ import annotations
