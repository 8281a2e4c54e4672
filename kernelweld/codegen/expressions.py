"""Sympy size expressions as Triton integer expressions."""

from __future__ import annotations

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from kernelweld.codegen.refusal import Refused

ZERO = sympy.Integer(0)


def spell(expr: sympy.Expr) -> str:
    """``expr`` as source text; sizes are non-negative, so ``//`` and ``%`` mean the same in Triton and
    in Python.
    """
    if isinstance(expr, (sympy.Integer, int)):
        return str(int(expr))  # sympy's own printer is a thousand times slower
    if isinstance(expr, sympy.Symbol):
        return str(expr.name)
    if isinstance(expr, sympy.Add):
        return " + ".join(spell(a) for a in expr.args)
    if isinstance(expr, sympy.Mul):
        return " * ".join(factor(a) for a in expr.args)
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
        return " * ".join([factor(expr.base)] * int(expr.exp))
    if isinstance(expr, FloorDiv):
        return _quotient(*expr.args)
    if isinstance(expr, (Mod, PythonMod)):
        return f"{factor(expr.args[0])} % {factor(expr.args[1])}"
    if isinstance(expr, ModularIndexing):
        base, divisor, modulus = (factor(a) for a in expr.args)
        return f"{base} // {divisor} % {modulus}"
    raise Refused(f"size expression `{expr}` has no spelling in Triton")


def _quotient(dividend: sympy.Expr, divisor: sympy.Expr) -> str:
    """``dividend // divisor``, rounded down: Triton rounds to zero, which differs where one of them is
    negative, as in ``-(rows // -4)``.
    """
    if divisor.is_negative:
        dividend, divisor = -dividend, -divisor
    if (-dividend).is_positive:
        return f"-({factor(divisor - 1 - dividend)} // {factor(divisor)})"
    return f"{factor(dividend)} // {factor(divisor)}"


def factor(expr: sympy.Expr) -> str:
    """``expr`` as one operand of a product."""
    text = spell(expr)
    plain = isinstance(expr, (sympy.Symbol, int)) or (isinstance(expr, sympy.Integer) and expr >= 0)
    return text if plain else f"({text})"


def product(left: str, right: sympy.Expr) -> str | None:
    """``left * right`` simplified, evaluated from the left; None when it is zero."""
    if right == 0:
        return None
    if right == 1:
        return left
    factors = right.args if isinstance(right, sympy.Mul) else (right,)
    return " * ".join([left, *(factor(f) for f in factors)])


def total(*terms: str | None) -> str:
    """The sum of the terms that are not zero; "0" when all are."""
    return " + ".join(t for t in terms if t is not None and t != "0") or "0"
