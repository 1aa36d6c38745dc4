"""Which steps are captured, what is copied where, and in what state a capture leaves the device, failed or not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from qpdsl.executor.engine.batch.kernel_batch import bucket
from qpdsl.executor.engine.step.graphs import CAPTURED_AT, CudaRecorder, StepGraphs
from qpdsl.executor.kernels.packed import Sizes


class Fake:
    """A device: `forward` sums its input; a captured graph sums what then lies in the same buffer.

    Captures fail with `error`; graphs take `size` bytes beside their buffers.
    """

    def __init__(self, error: Exception | None = None, size: int = 0) -> None:
        self.error = error
        self.size = size
        self.eager = 0
        self.buffers: list[torch.Tensor] = []

    def forward(self, inputs: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        self.eager += 1
        return inputs.sum()[None].float()

    def allocate(self, sizes: Sizes) -> torch.Tensor:
        self.buffers.append(torch.zeros(sizes.tokens, dtype=torch.int32))
        return self.buffers[-1]

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Fake.Graph, torch.Tensor]:
        if self.error is not None:
            raise self.error
        inputs = self.buffers[-1]
        result = torch.full((1,), float("nan"))
        return Fake.Graph(inputs, result, self.size), result

    class Graph:
        def __init__(self, inputs: torch.Tensor, result: torch.Tensor, size: int) -> None:
            self.inputs, self.result, self.bytes = inputs, result, size

        def replay(self) -> None:
            self.result.copy_(self.inputs.sum())


def sizes(rows: int) -> Sizes:
    return Sizes(rows, rows, 8, 0, rows, 128, 1)


def step(graphs: StepGraphs, rows: int, value: int) -> float:
    def fill(inputs: torch.Tensor) -> None:
        inputs.fill_(value)

    return graphs.run(sizes(rows), fill).item()


def test_rows_are_rounded_up_to_few_sizes() -> None:
    assert sorted({bucket(rows) for rows in range(1, 50)}) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56]
    assert all(rows <= bucket(rows) < rows + 8 for rows in range(1, 300))


def test_sizes_that_come_back_are_captured_and_replayed_on_new_numbers() -> None:
    device = Fake()
    graphs = StepGraphs(device.forward, device.allocate, device.record)
    assert [step(graphs, 4, value) for value in (1, 2, 3, 4, 5)] == [4.0, 8.0, 12.0, 16.0, 20.0]
    assert (device.eager, graphs.captures, graphs.replays) == (CAPTURED_AT, 1, 5 - CAPTURED_AT)
    assert step(graphs, 2, 5) == 10.0
    assert step(graphs, 4, 6) == 24.0
    assert (device.eager, graphs.captures, graphs.replays) == (CAPTURED_AT + 1, 1, 6 - CAPTURED_AT)


def test_steps_whose_sizes_never_come_back_are_never_captured() -> None:
    """A search over a shared prefix: every step has other bounds."""
    device = Fake()
    graphs = StepGraphs(device.forward, device.allocate, device.record)
    for index in range(3000):
        for _ in range(CAPTURED_AT - 1):
            graphs.run(sizes(4)._replace(tiles=1, prefix=index), lambda inputs: None)
    assert (graphs.captures, graphs.bytes) == (0, 0)
    assert len(graphs._counts) <= 1024


def test_steps_differ_in_every_size() -> None:
    device = Fake()
    graphs = StepGraphs(device.forward, device.allocate, device.record, at=1)
    base = sizes(4)
    for place in range(len(base)):
        changed = Sizes(*(number + (index == place) for index, number in enumerate(base)))
        graphs.run(changed, lambda inputs: None)
    assert graphs.captures == len(base) and graphs.replays == 0


def test_the_graph_used_longest_ago_goes_first() -> None:
    device = Fake()
    graphs = StepGraphs(device.forward, device.allocate, device.record, most=2, at=1)
    for rows in (1, 2, 1, 3, 1, 2, 2):
        step(graphs, rows, 1)
    assert (graphs.captures, graphs.replays) == (4, 2)


def test_more_sizes_than_graphs_do_not_capture_all_the_time() -> None:
    """Round and round three sizes with two graphs: each that had to go waits twice as long to come again."""
    device = Fake()
    graphs = StepGraphs(device.forward, device.allocate, device.record, most=2, at=1)
    for _ in range(100):
        for rows in (1, 2, 4):
            assert step(graphs, rows, rows) == rows * rows
    assert graphs.captures < 20
    assert graphs.replays > 150


def test_graphs_are_kept_within_their_memory() -> None:
    device = Fake(size=1000)
    graphs = StepGraphs(device.forward, device.allocate, device.record, most_bytes=2500, at=1)
    for rows in (1, 2, 4, 8):
        step(graphs, rows, 1)
    assert 2000 < graphs.bytes <= 2500
    replays = graphs.replays
    step(graphs, 8, 1)
    step(graphs, 4, 1)
    assert graphs.replays == replays + 2


def test_without_capturing_steps_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    device = Fake(RuntimeError("operation not permitted when stream is capturing"))
    graphs = StepGraphs(device.forward, device.allocate, device.record, at=2)
    assert [step(graphs, 4, value) for value in (1, 2, 3)] == [4.0, 8.0, 12.0]
    assert device.eager == 3
    assert graphs.refused == {sizes(4): "RuntimeError: operation not permitted when stream is capturing"}
    assert len([record for record in caplog.records if "4 rows run without a CUDA graph" in record.message]) == 1


def test_sizes_that_cannot_be_captured_leave_others_their_graphs() -> None:
    device = Fake(RuntimeError("no such kernel"))
    graphs = StepGraphs(device.forward, device.allocate, device.record, at=1)
    step(graphs, 4, 1)
    device.error = None
    assert [step(graphs, rows, 2) for rows in (8, 4, 8)] == [16.0, 8.0, 16.0]
    assert (graphs.captures, graphs.replays, list(graphs.refused)) == (1, 1, [sizes(4)])
    # Where it happens again and again, it is not about sizes.
    device.error = RuntimeError("no such kernel")
    for rows in (16, 24):
        step(graphs, rows, 1)
    device.error = None
    step(graphs, 32, 1)
    assert graphs.captures == 1


def test_sizes_that_are_prepared_are_replayed_from_the_first_step_on() -> None:
    device = Fake()
    graphs = StepGraphs(device.forward, device.allocate, device.record)
    for rows in (4, 2):
        graphs.prepare(sizes(rows), lambda inputs: None)
    assert [step(graphs, 4, 1), step(graphs, 2, 3)] == [4.0, 6.0]
    assert (graphs.captures, graphs.replays) == (2, 2)


def test_where_memory_runs_out_the_graphs_that_are_there_stay_in_use() -> None:
    device = Fake()
    graphs = StepGraphs(device.forward, device.allocate, device.record, at=1)
    step(graphs, 1, 1)
    step(graphs, 2, 1)
    device.error = torch.OutOfMemoryError("no more")
    assert step(graphs, 4, 3) == 12.0
    device.error = None
    assert graphs.refused == {}
    assert (step(graphs, 1, 5), step(graphs, 2, 5), graphs.replays) == (5.0, 10.0, 2)
    # Another takes the place of one of the two.
    assert step(graphs, 4, 3) == 12.0
    assert (graphs.captures, step(graphs, 4, 2), graphs.replays) == (3, 8.0, 3)
    assert step(graphs, 2, 1) == 2.0 and graphs.replays == 4


class FakeCuda:
    """What of torch.cuda a capture uses, with its order of events and the state that a failed one leaves.

    A capture that broke raises when it is ended, and leaves the allocator's pool open, as torch does. `taken` bytes are
    taken by a capture, and `cached` are given back by `empty_cache`.
    """

    def __init__(self) -> None:
        self.stream_now: object = "caller"
        self.open_pools = 0
        self.shares = 0
        self.broken = False
        self.breaks_at_end = False
        self.free = 1000
        self.cached = 300
        self.taken = 120
        self.streams_of_work: list[object] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        cuda = torch.cuda
        for name, value in {
            "graph_pool_handle": lambda: (0, 1),
            "Stream": lambda: FakeStream(),
            "stream": self.stream,
            "current_stream": lambda: FakeStream(),
            "current_device": lambda: 0,
            "synchronize": lambda: None,
            "empty_cache": self.empty_cache,
            "mem_get_info": lambda: (self.free, 2000),
            "CUDAGraph": lambda: FakeGraph(self),
        }.items():
            patch.setattr(cuda, name, value)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocate, raising=False)
        patch.setattr(torch._C, "_cuda_releasePool", self.release, raising=False)

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    def empty_cache(self) -> None:
        self.free, self.cached = self.free + self.cached, 0

    def end_allocate(self, device: int, pool: tuple[int, int]) -> None:
        if not self.open_pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open_pools -= 1

    def release(self, device: int, pool: tuple[int, int]) -> None:
        assert not self.open_pools, "a pool is given back once nothing is allocated in it"
        self.shares -= 1


class FakeStream:
    def wait_stream(self, other: object) -> None:
        pass


class FakeGraph:
    def __init__(self, device: FakeCuda) -> None:
        self.device = device
        self.ended = False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert self.device.stream_now != "caller"
        self.device.open_pools += 1
        self.device.shares += 1

    def capture_end(self) -> None:
        if self.device.broken or self.device.breaks_at_end:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.device.open_pools -= 1
        self.device.free -= self.device.taken
        self.ended = True

    def reset(self) -> None:
        if self.ended:
            self.device.shares -= 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    device = FakeCuda()
    device.install(monkeypatch)
    return device


@pytest.mark.parametrize("broken", [True, False])
def test_a_failed_capture_leaves_everything_as_it_was(cuda: FakeCuda, broken: bool) -> None:
    def work() -> torch.Tensor:
        if cuda.open_pools:
            cuda.broken = broken
            raise ValueError("the root of it")
        return torch.ones(1)

    recorder = CudaRecorder()
    with pytest.raises(ValueError, match="the root of it") as caught:
        recorder(work)
    assert (cuda.stream_now, cuda.open_pools, cuda.shares, gc.isenabled()) == ("caller", 0, 0, True)
    notes = getattr(caught.value, "__notes__", [])
    assert any("previous error during capture" in note for note in notes) == broken


def test_a_capture_that_cannot_be_ended_leaves_everything_as_it_was(cuda: FakeCuda) -> None:
    cuda.breaks_at_end = True
    with pytest.raises(RuntimeError, match="previous error during capture"):
        CudaRecorder()(lambda: torch.ones(1))
    assert (cuda.stream_now, cuda.open_pools, cuda.shares) == ("caller", 0, 0)


def test_after_a_failed_capture_steps_run_in_the_callers_stream(cuda: FakeCuda) -> None:
    def forward(inputs: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        if cuda.open_pools:
            cuda.broken = True
            raise RuntimeError("no kernel image")
        cuda.streams_of_work.append(cuda.stream_now)
        return inputs.sum()[None].float()

    graphs = StepGraphs(forward, lambda sizes: torch.zeros(sizes.tokens, dtype=torch.int32), CudaRecorder(), at=1)
    assert [step(graphs, 4, value) for value in (1, 2)] == [4.0, 8.0]
    assert graphs.refused == {sizes(4): "RuntimeError: no kernel image"}
    assert cuda.streams_of_work[0] == cuda.streams_of_work[-1] == "caller" and cuda.open_pools == 0


def test_bytes_of_a_graph_are_what_it_took(cuda: FakeCuda) -> None:
    """More was given back before the capture than it took."""
    graph, _ = CudaRecorder()(lambda: torch.ones(1))
    assert graph.bytes == 120 and (cuda.open_pools, cuda.shares) == (0, 1)


def test_libraries_meet_the_captures_stream_before_the_first_capture(cuda: FakeCuda) -> None:
    """Their workspaces for a stream come with the first call in it, and outlive a graph's pool."""
    calls: list[Any] = []

    def work() -> torch.Tensor:
        calls.append((cuda.stream_now != "caller", cuda.open_pools))
        return torch.ones(1)

    recorder = CudaRecorder()
    recorder(work)
    recorder(work)
    assert calls == [(True, 0), (True, 1), (True, 1)]


def test_nothing_is_collected_during_a_capture(cuda: FakeCuda) -> None:
    enabled: list[bool] = []

    def work() -> torch.Tensor:
        enabled.append(gc.isenabled())
        return torch.ones(1)

    CudaRecorder()(work)
    assert enabled[-1] is False and gc.isenabled()


def test_closed_graphs_are_gone() -> None:
    device = Fake(size=1000)
    graphs = StepGraphs(device.forward, device.allocate, device.record, at=1)
    step(graphs, 4, 1)
    assert graphs.bytes > 1000
    graphs.close()
    assert graphs.bytes == 0
