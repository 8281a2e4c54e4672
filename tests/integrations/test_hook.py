"""The pass itself: graphs in disorder, and a key that two GPUs of a kind share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from kernelweld.integrations.aot import capture
from kernelweld.integrations.hook import KernelweldPass, gpu_kind

Tensor = torch.Tensor
KEEP_ALL = "canonicalize,raise,plan{keep-all=true},lower{target=triton}"


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def test_a_graph_in_disorder_is_put_in_order() -> None:
    """An engine's own passes leave nodes before what they read, and sort behind us."""
    graph = capture(norm, (torch.randn(3, 32), torch.rand(32))).graphs[0].graph
    first = next(node for node in graph.nodes if node.op == "call_function")
    graph.output_node().prepend(first)
    with pytest.raises(RuntimeError, match="before it has been defined"):
        graph.lint()
    welded = KernelweldPass(KEEP_ALL, strict=True).weld(graph)
    assert welded.failure is None and [weld.name for weld in welded.report.welds] == ["rms_norm"]
    graph.lint()


def test_two_gpus_of_a_kind_share_artefacts(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 1}
    gpus = [SimpleNamespace(**kind, uuid=f"GPU-{i}", pci_bus_id=i) for i in (0, 1)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpus[index])
    kinds = []
    for index in (0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda index=index: index)
        kinds.append(gpu_kind())
    assert kinds[0] == kinds[1]
    gpus[1].multi_processor_count = 78
    assert gpu_kind() != kinds[0]
