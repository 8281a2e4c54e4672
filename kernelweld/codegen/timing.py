"""Time on the GPU: medians of CUDA-graph replays, over inputs that no cache holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch

#: Bytes of the inputs that calls rotate through: more than the L2 cache of any GPU so far.
ROTATED = 128 << 20
_FEWEST, _MOST = 4, 128


def rotations(moved: int) -> int:
    """How many sets of inputs of ``moved`` bytes rotate through ``ROTATED`` bytes, within reason."""
    return max(_FEWEST, min(_MOST, math.ceil(ROTATED / max(1, moved))))


def microseconds(
    function: Callable[..., object], inputs: Sequence[Sequence[object]], repeats: int = 9
) -> float:
    """The time of one call: one CUDA graph calls ``function`` on each of ``inputs`` in turn; the median over
    ``repeats`` replays.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for given in inputs[:2]:
            function(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for given in inputs:
                function(*given)
        graph.replay()
        times: list[float] = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1000 / len(inputs))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per microsecond that an elementwise kernel moves, read and written: a memcpy is slower."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: torch.neg(source, out=target), [()] * 4)
