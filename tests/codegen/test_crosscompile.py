"""Typical kernels at real sizes compile for GPUs that are not here, within registers."""

from __future__ import annotations

from typing import Any

import pytest

from kernelweld.codegen.crosscompile import Compiled, compile_for
from kernelweld.codegen.emit import Kernel
from kernelweld.errors import CodegenFailed, UnknownName

TARGETS = ("sm_90", "sm_100", "gfx942")
KERNELS = ("add_rms_norm", "head_norm_rope", "decode_pack", "layer_norm", "swiglu", "mrope")
#: mrope computes sines and cosines, whose argument reduction has a small local table.
LOCAL_TABLE = frozenset({"mrope"})


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_no_spills(name: str, catalogue: Any) -> None:
    compiled = compile_for(catalogue(name), TARGETS)
    assert [c.target for c in compiled] == list(TARGETS)
    for result in compiled:
        assert 0 < result.registers <= 128
        assert result.stack_bytes == 0 or name in LOCAL_TABLE, result


def test_a_rounded_product_is_not_fused_into_the_sum_after_it(catalogue: Any) -> None:
    """One multiply-add in bfloat16 would round once where the model rounds twice."""
    (result,) = compile_for(catalogue("head_norm_rope"), ["sm_90"])
    assert "sub.f32" in result.assembly
    assert "fma.rn.bf16" not in result.assembly


def test_an_unknown_target_comes_back_with_close_names(catalogue: Any) -> None:
    with pytest.raises(UnknownName, match="'sm90'; did you mean 'sm_90'"):
        compile_for(catalogue("swiglu"), ["sm90"])


def test_what_does_not_compile_is_named(catalogue: Any) -> None:
    good = catalogue("swiglu")
    broken = Kernel(
        **{
            **vars(good),
            "name": "broken",
            "source": good.source.replace(good.name, "broken").replace("tl.exp", "tl.nope"),
        }
    )
    with pytest.raises(CodegenFailed, match=r"(?s)no kernel for weld 'broken': it does not compile\n.*nope"):
        compile_for(broken, ["sm_90"])


def test_a_result_is_plain_data(catalogue: Any) -> None:
    (result,) = compile_for(catalogue("swiglu"), ["sm_90"])
    assert isinstance(result, Compiled)
    assert result.binary_bytes > 1000
