"""Which steps are captured, what is copied where, and what happens when a capture fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from qpdsl.executor.engine.batch.assembler import bucket
from qpdsl.executor.engine.step.graphs import CAPTURED_AT, DecodeGraphs
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


def step(graphs: DecodeGraphs, rows: int, value: int) -> float:
    def fill(inputs: torch.Tensor) -> None:
        inputs.fill_(value)

    return graphs.run(sizes(rows), fill).item()


def test_rows_are_rounded_up_to_few_sizes() -> None:
    assert sorted({bucket(rows) for rows in range(1, 50)}) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56]
    assert all(rows <= bucket(rows) < rows + 8 for rows in range(1, 300))


def test_sizes_that_come_back_are_captured_and_replayed_on_new_numbers() -> None:
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record)
    assert [step(graphs, 4, value) for value in (1, 2, 3, 4, 5)] == [4.0, 8.0, 12.0, 16.0, 20.0]
    assert (device.eager, graphs.captures, graphs.replays) == (CAPTURED_AT, 1, 5 - CAPTURED_AT)
    assert step(graphs, 2, 5) == 10.0
    assert step(graphs, 4, 6) == 24.0
    assert (device.eager, graphs.captures, graphs.replays) == (CAPTURED_AT + 1, 1, 6 - CAPTURED_AT)


def test_steps_whose_sizes_never_come_back_are_never_captured() -> None:
    """A search over a shared prefix: every step has other bounds."""
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record)
    for index in range(3000):
        for _ in range(CAPTURED_AT - 1):
            graphs.run(sizes(4)._replace(tiles=1, prefix=index), lambda inputs: None)
    assert (graphs.captures, graphs.bytes) == (0, 0)
    assert len(graphs._counts) <= 1024


def test_steps_differ_in_every_size() -> None:
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record, at=1)
    base = sizes(4)
    for place in range(len(base)):
        changed = Sizes(*(number + (index == place) for index, number in enumerate(base)))
        graphs.run(changed, lambda inputs: None)
    assert graphs.captures == len(base) and graphs.replays == 0


def test_the_graph_used_longest_ago_goes_first() -> None:
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record, most=2, at=1)
    for rows in (1, 2, 1, 3, 1, 2, 2):
        step(graphs, rows, 1)
    assert (graphs.captures, graphs.replays) == (4, 2)


def test_more_sizes_than_graphs_do_not_capture_all_the_time() -> None:
    """Round and round three sizes with two graphs: each that had to go waits twice as long to come again."""
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record, most=2, at=1)
    for _ in range(100):
        for rows in (1, 2, 4):
            assert step(graphs, rows, rows) == rows * rows
    assert graphs.captures < 20
    assert graphs.replays > 150


def test_graphs_are_kept_within_their_memory() -> None:
    device = Fake(size=1000)
    graphs = DecodeGraphs(device.forward, device.allocate, device.record, most_bytes=2500, at=1)
    for rows in (1, 2, 4, 8):
        step(graphs, rows, 1)
    assert 2000 < graphs.bytes <= 2500
    replays = graphs.replays
    step(graphs, 8, 1)
    step(graphs, 4, 1)
    assert graphs.replays == replays + 2


def test_without_capturing_steps_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    device = Fake(RuntimeError("operation not permitted when stream is capturing"))
    graphs = DecodeGraphs(device.forward, device.allocate, device.record, at=2)
    assert [step(graphs, 4, value) for value in (1, 2, 3)] == [4.0, 8.0, 12.0]
    assert device.eager == 3
    assert graphs.failure == "RuntimeError: operation not permitted when stream is capturing"
    assert len([record for record in caplog.records if "without more CUDA graphs" in record.message]) == 1


def test_where_memory_runs_out_the_graphs_that_are_there_stay_in_use() -> None:
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record, at=1)
    step(graphs, 1, 1)
    step(graphs, 2, 1)
    device.error = torch.OutOfMemoryError("no more")
    assert step(graphs, 4, 3) == 12.0
    device.error = None
    assert graphs.failure is None
    assert (step(graphs, 1, 5), step(graphs, 2, 5), graphs.replays) == (5.0, 10.0, 2)
    # Another takes the place of one of the two.
    assert step(graphs, 4, 3) == 12.0
    assert (graphs.captures, step(graphs, 4, 2), graphs.replays) == (3, 8.0, 3)
    assert step(graphs, 2, 1) == 2.0 and graphs.replays == 4
