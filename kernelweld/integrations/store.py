"""Reports kept beside the kernels: on a compile-cache hit no pass runs, and the report of the first
compilation is read instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import fx

from kernelweld.codegen.cache import cache_dir, write_text
from kernelweld.ir.report import GraphReport, Report


def key_of(gm: fx.GraphModule, inputs: Sequence[object], uuid: str) -> str:
    """An address for one Dynamo graph: its code, what is known of its inputs, and the pass that
    compiles it.
    """
    described = [_describe(value) for value in inputs]
    return hashlib.sha256("\n".join((gm.code, *described, uuid)).encode()).hexdigest()[:32]


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device} {value.requires_grad}"
    return f"{type(value).__name__} {value}"


def save(key: str, reports: Sequence[GraphReport]) -> None:
    """Writes the reports of one compilation, atomically; a folder that cannot be written is no reason
    to fail.
    """
    with suppress(OSError):
        write_text(_path(key), Report(tuple(reports)).to_json())


def read(key: str) -> tuple[GraphReport, ...]:
    """The reports of an earlier compilation, none if there was none."""
    try:
        return Report.from_json(_path(key).read_text(encoding="utf-8")).graphs
    except (OSError, ValueError, KeyError):
        return ()


def _path(key: str) -> Path:
    return cache_dir() / "reports" / f"{key}.json"
