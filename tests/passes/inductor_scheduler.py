"""Prints, as JSON, how many kernels Inductor's own scheduler makes of the cases of test_launches.py for CUDA.

Run as a script in a process of its own: it puts a stand-in where the CUDA driver would be, so that
Inductor lowers and fuses for a GPU that is not there, and stops before code is generated. Usage:
inductor_scheduler.py test_launches.py
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace

import torch
import torch._inductor.config as inductor_config
import triton
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._guards import detect_fake_mode
from torch._inductor import scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget

CUDA = torch.device("cuda:0")
PROPERTIES = SimpleNamespace(
    name="stand-in",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    total_memory=2**37,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
)


class Driver:
    """What Triton asks of its driver while Inductor decides what to fuse."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def is_active(self) -> bool:
        return True


def pretend() -> None:
    """Makes torch and Triton believe in one GPU."""
    triton.runtime.driver.set_active(Driver())
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_compute_capability": lambda device=None: 90,
        "is_triton_capable": lambda device=None: True,
        "raise_if_triton_unavailable": lambda device=None: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "synchronize": lambda device=None: None,
        "_lazy_init": lambda: None,
        "get_device_capability": lambda device=None: (9, 0),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        setattr(CudaInterface, name, staticmethod(answer))
    for name in ("current_device", "get_device_properties"):
        setattr(CudaInterface.Worker, name, staticmethod(answers[name]))


def move(gm: GraphModule) -> list[Tensor]:
    """Says of every value that it is on the GPU; returns the inputs."""
    for node in gm.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, FakeTensor):
                value.fake_device = CUDA
        node.kwargs = {k: CUDA if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
    gm.recompile()
    return [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]


def kernels(gm: GraphModule) -> int:
    """The launches that Inductor's scheduler ends with: fused kernels and library calls."""
    inputs = move(gm)
    mode = detect_fake_mode(inputs)
    with V.set_fake_mode(mode), inductor_config.patch(joint_graph_constant_folding=False):
        graph = GraphLowering(gm, example_inputs=inputs, shape_env=mode.shape_env, is_inference=True)
        with V.set_graph_handler(graph), V.set_debug_handler(DebugContext()):
            graph.run(*inputs)
            graph.init_wrapper_code()
            graph._update_scheduler()
    return sum(not isinstance(node, scheduler.NopKernelSchedulerNode) for node in graph.scheduler.nodes)


def main(path: str) -> None:
    spec = importlib.util.spec_from_file_location("cases", path)
    cases = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = cases
    spec.loader.exec_module(cases)
    pretend()
    counts = {name: kernels(cases.trace(fn, inputs)) for name, (fn, inputs, _) in cases.CASES.items()}
    json.dump(counts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
