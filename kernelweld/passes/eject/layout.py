"""Python text in lines of at most ``WIDTH`` columns, as ``ruff format`` leaves it at that width or a greater
one: what does not fit is opened at its brackets, one item a line, with a comma behind the last.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

WIDTH = 100
_STEP = 4
_PLUS = re.compile(r"(?<=[0-9.]e)\+(?=[0-9])")
_SINGLE_QUOTED = re.compile(r"'([^'\"\\]*)'")


def flat(node: ast.expr) -> str:
    """An expression on one line."""
    text = _SINGLE_QUOTED.sub(r'"\1"', ast.unparse(ast.fix_missing_locations(node)))
    return plain_numbers(text)


def plain_numbers(text: str) -> str:
    """``1e+38`` as ``1e38``."""
    return _PLUS.sub("", text)


def expression(text: str) -> ast.expr:
    """The expression that ``text`` spells."""
    return ast.parse(text, mode="eval").body


def statement(text: str, indent: int = 0) -> list[str]:
    """One assignment, call or return."""
    if indent + len(text) <= WIDTH:
        return [" " * indent + text]
    (node,) = ast.parse(text).body
    match node:
        case ast.Assign(value=value):
            return opened(f"{text.partition(' = ')[0]} = ", value, "", indent)
        case ast.Return(value=ast.expr() as value):
            return opened("return ", value, "", indent)
        case ast.Expr(value=value):
            return opened("", value, "", indent)
    return [" " * indent + text]


def opened(before: str, node: ast.expr, behind: str, indent: int) -> list[str]:
    """``before``, the expression and ``behind``, opened at the expression's brackets if it is too long."""
    line = f"{' ' * indent}{before}{flat(node)}{behind}"
    if len(line) <= WIDTH:
        return [line]
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr=attr), args=args, keywords=keywords):
            rest = ", ".join(_items(args, keywords))
            if len(rest) < len(flat(inner)) and not _is_method_of_call(inner):
                return opened(before, inner, f".{attr}({rest}){behind}", indent)
    match node:
        case ast.Call(func=func, args=args, keywords=keywords) if args or keywords:
            return _bracketed(f"{before}{flat(func)}(", args, keywords, f"){behind}", indent)
        case ast.List(elts=items):
            return _bracketed(f"{before}[", items, (), f"]{behind}", indent)
        case ast.Set(elts=items):
            return _bracketed(f"{before}{{", items, (), f"}}{behind}", indent)
        case ast.Tuple(elts=items):
            return _bracketed(f"{before}(", items, (), f"){behind}", indent)
    return [line]


def _is_method_of_call(node: ast.Call) -> bool:
    """Whether a third call would stand in one line of dots, which a formatter breaks at the dots."""
    return isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name)


def _bracketed(
    before: str, items: Sequence[ast.expr], keywords: Sequence[ast.keyword], behind: str, indent: int
) -> list[str]:
    lines = [f"{' ' * indent}{before}"]
    for item in items:
        lines += opened("", item, ",", indent + _STEP)
    for keyword in keywords:
        lines += opened(f"{keyword.arg}=", keyword.value, ",", indent + _STEP)
    return [*lines, f"{' ' * indent}{behind}"]


def _items(args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> list[str]:
    return [*map(flat, args), *(f"{keyword.arg}={flat(keyword.value)}" for keyword in keywords)]


def listed(before: str, items: Sequence[str], behind: str, indent: int = 0) -> list[str]:
    """``before``, the items with commas between, ``behind``: on one line, or one item a line."""
    line = f"{' ' * indent}{before}{', '.join(items)}{behind}"
    if len(line) <= WIDTH:
        return [line]
    inner = " " * (indent + _STEP)
    return [f"{' ' * indent}{before}", *(f"{inner}{item}," for item in items), f"{' ' * indent}{behind}"]


def comment(text: str, indent: int = 0) -> str:
    """A comment on one line, cut where it is too long."""
    line = f"{' ' * indent}# {' '.join(text.split())}".rstrip()
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rstrip()} ..."
