"""The generated kernel as it stands in an ejected file: in its width, with helpers for every GPU."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence

from kernelweld.codegen.helpers import HELPERS
from kernelweld.passes.eject.layout import WIDTH, comment, flat, listed, opened, plain_numbers
from kernelweld.passes.eject.subject import Subject

#: The conversion of two values where there is one, and of each by itself elsewhere: in the interpreter too.
_PAIRS = """@triton.jit
def round_bf16_pairs(x):
    # x rounded to bfloat16; from sm_80 on one conversion takes two values
    if tl.target_info.cuda_capability_geq(8, 0):
        rounded = tl.inline_asm_elementwise(
            "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000; }",
            "=r,=r,r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        rounded = x.to(tl.bfloat16).to(tl.float32)
    return rounded
"""
_E2M1_PAIRS = """@triton.jit
def e2m1_pairs(even, odd):
    # two codes of e2m1 in a byte, the first in its low half
    if tl.target_info.cuda_capability_geq(10, 0):
        byte = tl.inline_asm_elementwise(
            "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $2, $1; cvt.u32.u8 $0, t; }",
            "=r,r,r",
            [even, odd],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        byte = e2m1_code(even) | (e2m1_code(odd) << 4)
    return byte
"""
# 0x7F800000 is infinity: what is above is no number, and has no sign here.
_E2M1_CODE = """@triton.jit
def e2m1_code(y):
    # the code of y as e2m1, half to the even code
    bits = y.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    size = tl.minimum(magnitude, 0x40C00000)
    shifted = size.to(tl.float32, bitcast=True) + 4194304.0
    small = shifted.to(tl.int32, bitcast=True) - 0x4A800000
    large = ((size + 0x1FFFFF + ((size >> 22) & 1)) >> 22) - 252
    sign = tl.where(magnitude > 0x7F800000, 0, (bits >> 28) & 8)
    return tl.where(size < 0x3F800000, small, large) | sign
"""
_REPLACED = {"e2m1_code": _E2M1_CODE, "round_bf16_pairs": _PAIRS, "e2m1_pairs": _E2M1_PAIRS}
_SIGNATURE = re.compile(r"def (?P<name>\w+)\((?P<names>.*)\):")
_COMMENT = re.compile(r"(?P<code>.*?\S)  # (?P<comment>.*)")


def kernel_text(subject: Subject) -> str:
    """The helpers and the kernel, which is called ``subject.name`` with ``_kernel`` behind it."""
    text = subject.renamed(subject.kernel.source)
    text = text[text.index("@triton.jit") :]
    for helper, portable in _REPLACED.items():
        text = text.replace(HELPERS[helper].rstrip(), portable.rstrip())
    head, _, rest = text.rpartition(f"def {subject.kernel.name}(")
    arguments = [f"{tensor}: tl.tensor" for tensor in subject.kernel.tensors]
    arguments += [f"{subject.renamed(symbol)}: int" for symbol in subject.kernel.symbols]
    signature = listed(f"def {kernel_name(subject)}(", arguments, ") -> None:")
    return "\n".join([_annotated(head.rstrip()), *signature, _body(rest.partition("):\n")[2])])


def _annotated(helpers: str) -> str:
    """The helpers with the types of their arguments."""
    return _SIGNATURE.sub(_with_types, helpers)


def _with_types(match: re.Match[str]) -> str:
    names = [f"{name.strip()}: tl.tensor" for name in match["names"].split(",")]
    return f"def {match['name']}({', '.join(names)}) -> tl.tensor:"


def kernel_name(subject: Subject) -> str:
    """What the kernel is called; the function around it has the name of the weld."""
    return f"_{subject.name}_kernel"


def _body(text: str) -> str:
    found: list[str] = []
    for line in _without_unused(text.rstrip().splitlines()):
        if line.strip().startswith(("elif ", "else:")) and found and not found[-1]:
            found.pop()
        if "  from " in line and line.strip().startswith("#"):
            continue  # the docstring has them
        found += _lines(_single_brackets(plain_numbers(line)))
    return "\n".join(found)


def _without_unused(lines: Sequence[str]) -> list[str]:
    """Without assignments to names that nothing reads: rows, where there is one."""
    read = Counter(name for line in lines for name in re.findall(r"\w+", line.partition("  # ")[0]))
    kept = [line for line in lines if not _assigns_alone(line, read)]
    return kept if len(kept) == len(lines) else _without_unused(kept)


def _assigns_alone(line: str, read: Counter[str]) -> bool:
    match = re.match(r"\s*(\w+) = ", line)
    return match is not None and read[match[1]] == 1


def _single_brackets(line: str) -> str:
    """``f((x))`` as ``f(x)``."""
    for start in (match.start() + 1 for match in re.finditer(r"\w\(\(", line)):
        end, comma = _closing(line, start + 1)
        if not comma and line[end + 1 : end + 2] == ")":
            return _single_brackets(line[: start + 1] + line[start + 2 : end] + line[end + 1 :])
    code, gap, text = line.partition("  # ")
    name, is_assignment, value = code.partition(" = (")
    if is_assignment and _closing(value, -1)[0] == len(value) - 1:
        return f"{name} = {value[:-1]}{gap}{text}"
    return line


def _closing(line: str, start: int) -> tuple[int, bool]:
    """Where the bracket at ``start`` (-1: one before the line) is closed, and whether a comma stands right in
    it.
    """
    depth, comma = int(start < 0), False
    for place in range(max(start, 0), len(line)):
        depth += (line[place] in "([{") - (line[place] in ")]}")
        comma |= line[place] == "," and depth == 1
        if depth == 0:
            return place, comma
    return len(line), True


def _lines(line: str) -> list[str]:
    """One line of code in as many as it needs, its comment before it if there is no room behind it."""
    if len(line) <= WIDTH:
        return [line]
    indent = len(line) - len(line.lstrip())
    if line.lstrip().startswith("#"):
        return [comment(line.lstrip("# "), indent)]
    match = _COMMENT.fullmatch(line)
    code, above = (line, []) if match is None else (match["code"], [comment(match["comment"], indent)])
    return [*above, *_opened(code.strip(), indent)]


def _opened(code: str, indent: int) -> list[str]:
    try:
        (node,) = ast.parse(code).body
    except SyntaxError:
        return [" " * indent + code]
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return _assigned(name, value, indent)
        case ast.Expr(value=ast.Call() as value):
            lines = opened("", value, "", indent)
            if max(map(len, lines)) <= WIDTH:
                return lines
            longest = max(range(len(value.args)), key=lambda place: len(flat(value.args[place])))
            first = _assigned("stored", value.args[longest], indent)
            value.args[longest] = ast.Name("stored", ast.Load())
            return [*first, *opened("", value, "", indent)]
    return [" " * indent + code]


def _assigned(name: str, value: ast.expr, indent: int) -> list[str]:
    """``name = value``; operands that are too long get names of their own first."""
    lines = opened(f"{name} = ", value, "", indent)
    if max(map(len, lines)) <= WIDTH:
        return lines
    match value:
        case ast.BinOp(left=left, op=op, right=right):
            first = [*_assigned(f"{name}_left", left, indent), *_assigned(f"{name}_right", right, indent)]
            both = ast.BinOp(ast.Name(f"{name}_left", ast.Load()), op, ast.Name(f"{name}_right", ast.Load()))
            return [*first, *opened(f"{name} = ", both, "", indent)]
        case ast.Call(func=ast.Attribute(value=ast.Call() as receiver, attr=attr)):
            first = _assigned(f"{name}_wide", receiver, indent)
            named = ast.Attribute(ast.Name(f"{name}_wide", ast.Load()), attr, ast.Load())
            call = ast.Call(named, value.args, value.keywords)
            return [*first, *opened(f"{name} = ", call, "", indent)]
        case ast.Call(args=[first_argument, *others]):
            first = _assigned(f"{name}_of", first_argument, indent)
            call = ast.Call(value.func, [ast.Name(f"{name}_of", ast.Load()), *others], value.keywords)
            return [*first, *opened(f"{name} = ", call, "", indent)]
    return lines
