"""Time on the GPU: medians of CUDA-graph replays, over inputs that no cache holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

#: Bytes of the inputs that calls rotate through: more than the L2 cache of any GPU so far.
ROTATED = 128 << 20
_FEWEST, _MOST = 4, 128


def rotations(moved: int) -> int:
    """How many sets of inputs of ``moved`` bytes rotate through ``ROTATED`` bytes, within reason."""
    return max(_FEWEST, min(_MOST, math.ceil(ROTATED / max(1, moved))))


def microseconds(function: Callable[..., object], inputs: Sequence[Sequence[object]]) -> float:
    """The time of one call of ``function`` on each of ``inputs`` in turn, in one CUDA graph: the median of
    replays.
    """
    return compared({"": function}, inputs)[""]


def compared(
    functions: Mapping[str, Callable[..., object]], inputs: Sequence[Sequence[object]], rounds: int = 9
) -> dict[str, float]:
    """``microseconds`` of each function, replayed in turn: what changes with time, such as clocks, changes
    for all of them.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graphs = {name: _captured(function, inputs, stream) for name, function in functions.items()}
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(rounds):
            for name, graph in graphs.items():
                times[name].append(_replayed(graph) / len(inputs))
    return {name: statistics.median(found) for name, found in times.items()}


def _captured(
    function: Callable[..., object], inputs: Sequence[Sequence[object]], stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    for given in inputs[:2]:
        function(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for given in inputs:
            function(*given)
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of a replay behind another one: the first has the GPU awake."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000


def copy_bandwidth() -> float:
    """Bytes per microsecond that an elementwise kernel moves, read and written: a memcpy is slower."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: torch.neg(source, out=target), [()] * 4)
