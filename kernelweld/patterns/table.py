"""All patterns, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kernelweld.patterns.cache_write import CacheWritePattern
from kernelweld.patterns.e2m1 import E2M1Pattern
from kernelweld.patterns.e4m3 import E4M3Pattern
from kernelweld.patterns.e8m0 import E8M0Pattern
from kernelweld.patterns.gate_mul import GateMulPattern
from kernelweld.patterns.l2_norm import L2NormPattern
from kernelweld.patterns.layer_norm import LayerNormPattern
from kernelweld.patterns.pattern import Pattern
from kernelweld.patterns.quant import QuantPattern
from kernelweld.patterns.quant_operators import QuantOperatorPattern
from kernelweld.patterns.quant_scale import QuantScalePattern
from kernelweld.patterns.residual_add import ResidualAddPattern
from kernelweld.patterns.rms_norm import RMSNormPattern
from kernelweld.patterns.rope import RopePattern
from kernelweld.patterns.rope_table import RopeTablePattern

#: Name to pattern class. A pattern sees the words that earlier ones raised: a gate inside a norm is the
#: norm's, and a residual sum is recognised by the norm that reads it.
PATTERNS: Mapping[str, type[Pattern]] = MappingProxyType(
    {
        cls.name: cls
        for cls in (
            LayerNormPattern,
            RMSNormPattern,
            L2NormPattern,
            RopePattern,
            RopeTablePattern,
            GateMulPattern,
            E8M0Pattern,
            QuantScalePattern,
            E4M3Pattern,
            E2M1Pattern,
            QuantPattern,
            QuantOperatorPattern,
            CacheWritePattern,
            ResidualAddPattern,
        )
    }
)
