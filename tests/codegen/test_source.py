"""The text of kernels: three whole files as goldens, and what a kernel file may contain."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

Golden = Callable[[str], None]


@pytest.mark.parametrize("name", ["add_rms_norm", "head_norm_rope", "decode_pack"])
def test_source(name: str, catalogue: Any, golden: Golden) -> None:
    golden(catalogue(name).source)


@pytest.mark.parametrize(
    "name", ["add_rms_norm", "head_norm_rope", "decode_pack", "layer_norm", "swiglu", "mrope"]
)
def test_a_file_keeps_to_what_inductor_can_copy(name: str, catalogue: Any) -> None:
    """No backslash, no triple quotes; only triton and tl are imported; every global that is read is
    one of them.
    """
    kernel = catalogue(name)
    assert "\\" not in kernel.source
    assert "'''" not in kernel.source
    assert kernel.source.isascii()
    tree = ast.parse(kernel.source)
    imports = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert imports == ["triton", "triton.language"]
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert kernel.name in functions
    for function in functions.values():
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {
            a.arg for a in function.args.args
        }
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)} - stored
        assert read <= {"tl", "triton", "float", *functions}


@pytest.mark.parametrize("name", ["add_rms_norm", "decode_pack", "mrope"])
def test_equal_programs_are_generated_once(name: str, catalogue: Any) -> None:
    assert catalogue(name) is catalogue(name)


def test_arguments_are_the_tensors_and_then_the_symbols(catalogue: Any) -> None:
    kernel = catalogue("head_norm_rope")
    function = next(
        n for n in ast.parse(kernel.source).body if isinstance(n, ast.FunctionDef) and n.name == kernel.name
    )
    assert tuple(a.arg for a in function.args.args) == kernel.tensors + kernel.symbols
