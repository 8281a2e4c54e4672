"""The launch of a kernel on the device that runs it."""

from __future__ import annotations

import torch

from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.launch import Launch, choose
from kernelweld.codegen.task import WeldProgram

#: From here on NVIDIA's GPUs round two values to bfloat16 by one conversion.
_AMPERE = (8, 0)


def launch_on(device: torch.device, program: WeldProgram) -> Launch:
    """The launch that is chosen for ``program`` on ``device``, with all that the device can do."""
    return choose(program, packed=rounds_pairs(device))


def rounds_pairs(device: torch.device) -> bool:
    """Whether ``device`` runs kernels that round bfloat16 in pairs. False where there is no GPU to ask."""
    if device.type != "cuda" or torch.version.cuda is None or interpreting():
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= _AMPERE
