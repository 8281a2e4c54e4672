"""``KERNELWELD_DUMP=DIR``: the graphs of a running program as the passes see them, and what was done to them.

Each graph becomes ``graph_NNN_<digest>.pt2``, and its report the ``.json`` of that name. Equal graphs, of the
processes of one model say, are one file. ``kernelweld`` takes the folder, or a file in it, as TARGET.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

from kernelweld.codegen.cache import write_text
from kernelweld.errors import KernelweldWarning
from kernelweld.integrations import graph_file
from kernelweld.ir.printer import format_graph
from kernelweld.ir.report import GraphReport, Report

VARIABLE = "KERNELWELD_DUMP"
_REMEDY = f"The model runs on. Choose another folder in {VARIABLE}, or unset it."


@dataclass(frozen=True)
class Dumped:
    """One graph that was written, and where its report belongs; ``path`` is None where it could not be."""

    path: Path | None

    def report(self, report: GraphReport) -> None:
        """Writes what became of the graph beside it."""
        if self.path is not None:
            try:
                write_text(self.path.with_suffix(".json"), Report((report,)).to_json())
            except OSError as error:
                _complain(error)


def wanted() -> bool:
    """Whether this process was asked to write its graphs."""
    return bool(os.environ.get(VARIABLE))


def dump(gm: fx.GraphModule) -> Dumped:
    """Writes the graph to the folder that ``KERNELWELD_DUMP`` names; a graph that cannot be written is a
    warning.
    """
    folder = Path(os.environ[VARIABLE])
    try:
        digest = hashlib.sha256("\n".join(_described(gm)).encode()).hexdigest()[:8]
        folder.mkdir(parents=True, exist_ok=True)
        path = next(folder.glob(f"graph_*_{digest}.pt2"), None) or _new(gm, folder, digest)
    except Exception as error:  # torch.export raises many types for what it cannot write
        _complain(error)
        return Dumped(None)
    return Dumped(path)


def _described(gm: fx.GraphModule) -> Iterator[str]:
    """All that makes two graphs different: the text leaves out how inputs lie in memory, and the numbers of
    constants.
    """
    yield format_graph(gm.graph, sources=True)
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            yield f"{value.stride()} {value.storage_offset()} {value.device}"
    for node in gm.graph.find_nodes(op="get_attr"):
        yield hashlib.sha256(graph_file.bytes_of(gm, str(node.target))).hexdigest()


def _new(gm: fx.GraphModule, folder: Path, digest: str) -> Path:
    """A file that is there whole or not at all."""
    path = folder / f"graph_{len(list(folder.glob('graph_*.pt2'))):03d}_{digest}.pt2"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        graph_file.save(gm, Path(scratch) / path.name)
        (Path(scratch) / path.name).replace(path)
    return path


def _complain(error: Exception) -> None:
    first = next(iter(str(error).strip().splitlines()), "no message")
    cause = f"a graph was not written to {os.environ.get(VARIABLE)}: {type(error).__name__}: {first}"
    warnings.warn(KernelweldWarning(cause, _REMEDY), stacklevel=2)
