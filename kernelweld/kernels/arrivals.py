"""Counters by which the programs of one launch find out which of them is the last to arrive."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

_SIZE = 1 << 16


@dataclass
class Arrivals:
    """Zeros of one device. A kernel counts in those that it takes, and its last program sets them to zero
    again, so that a replay of a CUDA graph finds zeros too.

    Calls take other counters than the calls before them, as far as there are: launches of two streams that
    run at once share none unless thousands of calls lie between them.
    """

    zeros: torch.Tensor
    taken: int = field(default=0)

    def take(self, count: int) -> torch.Tensor:
        """``count`` counters, int32 and zero."""
        start = self.taken if self.taken + count <= len(self.zeros) else 0
        self.taken = start + count
        return self.zeros[start : start + count]


_OF_DEVICE: dict[torch.device, Arrivals] = {}


def arrivals(device: torch.device, count: int) -> torch.Tensor:
    """``count`` zeros (int32) of ``device`` that the kernel leaves zero.

    The first call on a device allocates. Where a CUDA graph is being captured then, the graph gets zeros of
    its own and a launch that fills them.
    """
    if device not in _OF_DEVICE:
        zeros = torch.zeros(max(_SIZE, count), dtype=torch.int32, device=device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return zeros[:count]
        _OF_DEVICE[device] = Arrivals(zeros)
    return _OF_DEVICE[device].take(count)
