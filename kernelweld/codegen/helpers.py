"""Device functions that a kernel file carries when its kernel calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_ROUND_BF16 = """@triton.jit
def round_bf16(x):
    # x rounded to bfloat16
    return x.to(tl.bfloat16).to(tl.float32)
"""

# A conversion takes as long as four other instructions; this one converts two values. The asm hides a product
# from fusion into a sum.
_ROUND_BF16_PAIRS = """@triton.jit
def round_bf16_pairs(x):
    # x rounded to bfloat16, two values by one conversion
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000; }",
        "=r,=r,r,r", [x], dtype=tl.float32, is_pure=True, pack=2,
    )
"""

# A product rounded to bfloat16 loses that rounding when a sum follows: LLVM narrows both operations to
# bfloat16 and contracts them to one fused multiply-add, which rounds once. A shift widens just as exactly,
# and LLVM does not look through it.
_UNFUSED_BF16 = """@triton.jit
def unfused_bf16(x):
    # x, a bfloat16 value, widened by a shift: no compiler can fuse the product behind it into a sum
    bits = x.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) << 16
    return bits.to(tl.float32, bitcast=True)
"""

# The widening of float16 is no shift: here an exact scaling keeps LLVM from narrowing the product.
_ROUND_FP16 = """@triton.jit
def round_fp16(x):
    # x rounded to float16; scaled up and down, so that no compiler fuses the rounding away
    return (x * 4.0 * 0.25).to(tl.float16).to(tl.float32)
"""

_TANH_FP32 = """@triton.jit
def tanh_fp32(x):
    # near zero x + x^3 P(x^2), with P fitted to (tanh(x) - x) / x^3; elsewhere 1 - 2 / (exp(2|x|) + 1)
    s = x * x
    p = -0.33333329 + s * (0.13332782 + s * (-0.0538525 + s * (0.02100364 - 0.00610495 * s)))
    far = 1.0 - tl.div_rn(2.0, tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, x + x * s * p, tl.where(x < 0.0, -far, far))
"""

# A mantissa carries into the exponent; infinity and NaN, whose exponents are all ones, are kept.
_NEXT_POWER_OF_TWO = """@triton.jit
def next_power_of_two(x):
    # 2 ** ceil(log2(x)) of x >= 0, exactly
    bits = (x.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    return tl.where(x < float("inf"), bits.to(tl.float32, bitcast=True), x)
"""

_POWER_OF_TWO_BELOW = """@triton.jit
def power_of_two_below(x):
    # 2 ** floor(log2(x)) of x >= 0, exactly; zero for a subnormal
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(x < float("inf"), power, x)
"""

# The remainder has the sign that keeps a zero's: 0 * s - 0 is +0, and +0 times a negative number -0. Triton
# 3.6 writes a minus as a subtraction from zero, and -(1 / inf) would be +0: hence the products.
_CORRECTED = """@triton.jit
def corrected(quotient, x, scale, inverse):
    # x / scale, closer than quotient: less the remainder times 1 / scale
    return tl.fma(tl.fma(quotient, scale, x * -1.0), inverse * -1.0, quotient)
"""

# A division takes some forty instructions, most of them for cases that do not occur here.
_DIVIDED = """@triton.jit
def divided(x, by, inverse):
    # x / by rounded once, for x >= 0 and some numbers by; infinity and NaN are kept
    near = x * inverse
    return tl.where(x < float("inf"), tl.fma(tl.fma(near, by * -1.0, x), inverse, near), x)
"""

_RECIPROCAL = """@triton.jit
def reciprocal(scale, finite):
    # 1 / scale, at most one unit in the last place off: an approximation, and one step of Newton's method
    near = 1.0 / scale
    return tl.fma(tl.fma(near * -1.0, finite, 1.0), near, near)
"""

_FINITE_OR_ZERO = """@triton.jit
def finite_or_zero(scale):
    # zero for infinity, whose remainders would be no numbers
    return tl.where(scale == float("inf"), 0.0, scale)
"""

_RECIPROCAL_OR_ZERO = """@triton.jit
def reciprocal_or_zero(x):
    # 1 / x, and 0 for 0
    return tl.where(x == 0.0, 0.0, tl.div_rn(1.0, x))
"""

# Below 1 the numbers of e2m1 are 0.5 apart, as floats at 2**22 are, where a sum rounds to them; above, one
# bit of a float's significand is kept. NaN, whose bits are above those of 6, becomes 6.
_E2M1_CODE = """@triton.jit
def e2m1_code(y):
    # the code of y as e2m1, half to the even code
    bits = y.to(tl.int32, bitcast=True)
    size = tl.minimum(bits & 0x7FFFFFFF, 0x40C00000)
    small = (size.to(tl.float32, bitcast=True) + 4194304.0).to(tl.int32, bitcast=True) - 0x4A800000
    large = ((size + 0x1FFFFF + ((size >> 22) & 1)) >> 22) - 252
    return tl.where(size < 0x3F800000, small, large) | tl.where(y == y, (bits >> 28) & 8, 0)
"""

# One instruction where the GPU has it: sm_100 and up, of which Triton compiles for the variants with it.
_E2M1_PAIRS = """@triton.jit
def e2m1_pairs(even, odd):
    # two codes of e2m1 in a byte, the first in its low half
    if tl.target_info.cuda_capability_geq(10, 0):
        byte = tl.inline_asm_elementwise(
            "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $2, $1; cvt.u32.u8 $0, t; }",
            "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1,
        )
    else:
        byte = e2m1_code(even) | (e2m1_code(odd) << 4)
    return byte
"""

#: Source of each helper by its name; a helper calls only those before it.
HELPERS: Mapping[str, str] = MappingProxyType(
    {
        "round_bf16": _ROUND_BF16,
        "round_bf16_pairs": _ROUND_BF16_PAIRS,
        "unfused_bf16": _UNFUSED_BF16,
        "round_fp16": _ROUND_FP16,
        "tanh_fp32": _TANH_FP32,
        "corrected": _CORRECTED,
        "divided": _DIVIDED,
        "reciprocal": _RECIPROCAL,
        "finite_or_zero": _FINITE_OR_ZERO,
        "reciprocal_or_zero": _RECIPROCAL_OR_ZERO,
        "e2m1_code": _E2M1_CODE,
        "e2m1_pairs": _E2M1_PAIRS,
        "next_power_of_two": _NEXT_POWER_OF_TWO,
        "power_of_two_below": _POWER_OF_TWO_BELOW,
    }
)
