"""Device functions that a kernel file carries when its kernel calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TANH = """@triton.jit
def kernelweld_tanh(x):
    # near zero x + x³ P(x²), with P fitted to (tanh(x) - x) / x³; elsewhere 1 - 2 / (exp(2|x|) + 1)
    s = x * x
    near = x + x * s * (-0.33333329 + s * (0.13332782 + s * (-0.0538525 + s * (0.02100364 - 0.00610495 * s))))
    far = 1.0 - tl.div_rn(2.0, tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0.0, -far, far))
"""

#: Source of each helper by its name.
HELPERS: Mapping[str, str] = MappingProxyType({"kernelweld_tanh": _TANH})
