"""Steps captured as CUDA graphs, and replayed.

A step of a few rows is hundreds of small kernels, and the host launches them more slowly than the device runs them; a
captured graph is one launch. It replays the same kernels on the same addresses, so a graph has an input buffer
of its own, and serves just those steps whose `Sizes` are equal.
"""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from qpdsl.executor.kernels.packed import Sizes

_log = logging.getLogger(__name__)

# Graphs that are kept, and bytes that they may take with their pool; the least recently used goes first.
MAX_GRAPHS = 128
MAX_BYTES = 256 << 20
# A capture takes the host about as long as so many steps of its sizes, so rarer sizes are not captured.
CAPTURED_AT = 3
# Where so many sizes could not be captured, no other is tried.
_MOST_REFUSED = 3
# Sizes whose steps are counted; the one seen longest ago is forgotten.
_COUNTED = 1024

Forward = Callable[[torch.Tensor, Sizes], torch.Tensor]


class Graph(Protocol):
    """Launches that were captured; `bytes`: what the device keeps for them."""

    @property
    def bytes(self) -> int: ...

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Captures what `work` launches, and returns the graph and what `work` returned; before that it may run it."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class _CudaGraph:
    graph: torch.cuda.CUDAGraph
    bytes: int

    def replay(self) -> None:
        self.graph.replay()


class CudaRecorder:
    """Captures CUDA graphs on the current device; they share one memory pool, since no two run at the same time.

    A capture has a stream of its own. When it fails the caller's stream is current again, the allocator's pool is
    closed, and what is raised is the first error, not one that follows from it. `bytes` of a graph is by how much the
    device's free memory shrank: its part of the pool, and what the driver keeps. (`torch.cuda.graph` leaves its stream
    and its pool only where the capture can be ended, which is not so after many errors.)
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: Any = None

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        if self._stream is None:
            # torch does not annotate it.
            new_stream: Any = torch.cuda.Stream
            self._stream = new_stream()
            _warm_up(work, self._stream)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # A graph's pool cannot use what the ordinary one keeps. It must be given back before `free` is read, or the
        # graph would seem to take less than nothing.
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        with torch.cuda.stream(self._stream), _without_collections():
            try:
                # Other threads may allocate meanwhile; only this one's mistakes count.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                result = work()
                graph.capture_end()
            except BaseException as error:
                self._give_up(graph, error)
                raise
        return _CudaGraph(graph, max(0, free - torch.cuda.mem_get_info()[0])), result

    def _give_up(self, graph: torch.cuda.CUDAGraph, error: BaseException) -> None:
        """Ends a capture that failed by `error`, so that the stream and the allocator can be used again."""
        try:
            graph.capture_end()
        except RuntimeError as following:
            # Where the stream's capture cannot be ended properly torch leaves its pool open, and this graph's share.
            error.add_note(f"after that, ending the capture failed: {following}")
            device = torch.cuda.current_device()
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(device, self._pool)
                torch._C._cuda_releasePool(device, self._pool)
        else:
            graph.reset()


def _warm_up(work: Callable[[], torch.Tensor], stream: torch.cuda.Stream) -> None:
    """Runs `work` in the stream: libraries make workspaces for each, which must not come from a graph's pool."""
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        work()
    current.wait_stream(stream)


@contextmanager
def _without_collections() -> Iterator[None]:
    """No collection of garbage in the block: it could free things of the device, which a capture forbids."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    inputs: torch.Tensor
    result: torch.Tensor

    @property
    def bytes(self) -> int:
        return self.graph.bytes + self.inputs.nbytes + self.result.nbytes


@dataclass(slots=True)
class _Count:
    """How often sizes were `seen` since they were captured or first counted, and at which count they are captured."""

    seen: int = 0
    captured_at: int = CAPTURED_AT


class StepGraphs:
    """The captured steps of one model over one cache: those whose sizes keep coming back.

    `fill` copies a step's numbers, int32 on the host, into a device buffer int32 [n]; `forward` computes the hidden
    states of the step that lies in such a buffer. A capture takes as long as several steps, so sizes are captured when
    they come the `at`-th time, and those whose graph had to go need twice as many. Sizes whose capture fails run as
    they are from then on, and the reason is logged and kept in `refused`; where memory runs out meanwhile, no more
    graphs are kept than were there.
    """

    def __init__(
        self,
        forward: Forward,
        allocate: Callable[[Sizes], torch.Tensor],
        recorder: Recorder,
        most: int = MAX_GRAPHS,
        most_bytes: int = MAX_BYTES,
        at: int = CAPTURED_AT,
    ) -> None:
        self._forward = forward
        self._allocate = allocate
        self._recorder = recorder
        self._most = most
        self._most_bytes = most_bytes
        self._at = at
        self._kept: OrderedDict[Sizes, _Captured] = OrderedDict()
        self._counts: OrderedDict[Sizes, _Count] = OrderedDict()
        self.refused: dict[Sizes, str] = {}
        self.captures = 0
        self.replays = 0

    @property
    def bytes(self) -> int:
        """Bytes of the kept graphs and their buffers."""
        return sum(captured.bytes for captured in self._kept.values())

    def run(self, sizes: Sizes, fill: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """The hidden states of a step; they are overwritten by the next one of its sizes.

        The first steps of their sizes run as they are, which also warms up what a capture must not do (compiling
        kernels, making library handles).
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
        if self._comes_back(sizes):
            self._capture(sizes, inputs)
        return result

    def prepare(self, sizes: Sizes, fill: Callable[[torch.Tensor], None]) -> None:
        """Captures a step of these sizes before one comes, where that is not done yet; `fill` as in `run`."""
        if sizes not in self._kept:
            inputs = self._allocate(sizes)
            fill(inputs)
            self._forward(inputs, sizes)
            self._capture(sizes, inputs)

    def close(self) -> None:
        """Drops all graphs, and with them the memory of their pool."""
        self._kept.clear()

    def _comes_back(self, sizes: Sizes) -> bool:
        """Counts a step. True where there were enough of its sizes to capture them."""
        count = self._counts.setdefault(sizes, _Count(0, self._at))
        self._counts.move_to_end(sizes)
        if len(self._counts) > _COUNTED:
            self._counts.popitem(last=False)
        count.seen += 1
        return count.seen >= count.captured_at

    def _capture(self, sizes: Sizes, inputs: torch.Tensor) -> None:
        if sizes in self.refused or len(self.refused) >= _MOST_REFUSED:
            return
        while self._kept and len(self._kept) >= self._most:
            self._drop()
        try:
            graph, result = self._recorder(lambda: self._forward(inputs, sizes))
        except Exception as error:  # whatever a driver, a kernel or a model's own forward may raise
            if isinstance(error, torch.OutOfMemoryError) and self._kept:
                self._most = len(self._kept)
            else:
                self.refused[sizes] = f"{type(error).__name__}: {error}"
                _log.warning("steps of %d rows run without a CUDA graph: %s", sizes.tokens, self.refused[sizes])
            return
        self.captures += 1
        self._kept[sizes] = _Captured(graph, inputs, result)
        while len(self._kept) > 1 and self.bytes > self._most_bytes:
            self._drop()

    def _drop(self) -> None:
        """Drops the least recently used graph; its sizes are captured again after twice as many steps."""
        sizes, _ = self._kept.popitem(last=False)
        count = self._counts.setdefault(sizes, _Count(0, self._at))
        count.seen, count.captured_at = 0, 2 * count.captured_at
