"""Decode steps captured once and replayed: what is kept for which step, and what is copied where.

A step of a few rows is hundreds of small kernels, and launching them takes the host longer than the device takes to run
them; a captured graph is one launch. It replays the same kernels on the same addresses, so a graph has an input buffer
of its own, and serves just those steps whose `Sizes` are equal.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from qpdsl.executor.kernels.packed import Sizes

_log = logging.getLogger(__name__)

# Graphs that are kept; the one used longest ago goes first. Each takes some megabytes beside the shared pool.
MOST_GRAPHS = 64
_SMALL = (1, 2, 4, 8, 16)
_STEP = 8

Forward = Callable[[torch.Tensor, Sizes], torch.Tensor]


def bucket(rows: int) -> int:
    """The number of rows that a captured step with `rows` rows is padded to: 1, 2, 4, 8, 16, 24, 32 and so on."""
    return next((size for size in _SMALL if size >= rows), -(-rows // _STEP) * _STEP)


class Graph(Protocol):
    """Launches that were captured."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Captures what `work` launches, without running it, and returns the graph and what `work` returned."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]: ...


class CudaRecorder:
    """Captures CUDA graphs that share one memory pool: they never run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile; only this one's mistakes count.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        return graph, result


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    inputs: torch.Tensor
    result: torch.Tensor


class DecodeGraphs:
    """The captured decode steps of one model over one cache.

    `fill` copies a step's numbers, int32 on the host, into a device buffer int32 [n]; `forward` computes the hidden
    states of the step that lies in such a buffer. Where a capture fails no other is tried, and the reason is logged
    and kept in `failure`.
    """

    def __init__(
        self,
        forward: Forward,
        allocate: Callable[[Sizes], torch.Tensor],
        recorder: Recorder,
        most: int = MOST_GRAPHS,
    ) -> None:
        self._forward = forward
        self._allocate = allocate
        self._recorder = recorder
        self._most = most
        self._kept: OrderedDict[Sizes, _Captured] = OrderedDict()
        self.failure: str | None = None
        self.captures = 0
        self.replays = 0

    def run(self, sizes: Sizes, fill: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """The hidden states of a step; they are overwritten by the next one of its sizes.

        The first step of its sizes runs as it is, which also warms up what a capture must not do (compiling kernels,
        making library handles), and is captured after that.
        """
        captured = self._kept.get(sizes)
        if captured is not None:
            self._kept.move_to_end(sizes)
            fill(captured.inputs)
            captured.graph.replay()
            self.replays += 1
            return captured.result
        inputs = self._allocate(sizes)
        fill(inputs)
        result = self._forward(inputs, sizes)
        if self.failure is None:
            self._capture(sizes, inputs)
        return result

    def _capture(self, sizes: Sizes, inputs: torch.Tensor) -> None:
        try:
            graph, result = self._recorder(lambda: self._forward(inputs, sizes))
        except Exception as error:  # whatever a driver, a kernel or a model's own forward may raise
            self.failure = f"{type(error).__name__}: {error}"
            _log.warning("decode steps run without CUDA graphs, as capturing one failed: %s", self.failure)
            return
        self.captures += 1
        self._kept[sizes] = _Captured(graph, inputs, result)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
