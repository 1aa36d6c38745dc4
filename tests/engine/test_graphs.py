"""Which steps are captured, what is copied where, and what happens when a capture fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from qpdsl.executor.engine.graphs import DecodeGraphs, bucket
from qpdsl.executor.kernels.packed import Sizes


class Fake:
    """A device: `forward` sums its input; a captured graph sums what then lies in the same buffer."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.eager = 0
        self.buffers: list[torch.Tensor] = []

    def forward(self, inputs: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        self.eager += 1
        return inputs.sum()[None].float()

    def allocate(self, sizes: Sizes) -> torch.Tensor:
        self.buffers.append(torch.zeros(sizes.tokens, dtype=torch.int32))
        return self.buffers[-1]

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Fake.Graph, torch.Tensor]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        inputs = self.buffers[-1]
        result = torch.full((1,), float("nan"))
        return Fake.Graph(inputs, result), result

    class Graph:
        def __init__(self, inputs: torch.Tensor, result: torch.Tensor) -> None:
            self.inputs, self.result = inputs, result

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


def test_the_first_step_of_its_size_runs_and_the_next_are_replayed_on_new_numbers() -> None:
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record)
    assert [step(graphs, 4, value) for value in (1, 2, 3)] == [4.0, 8.0, 12.0]
    assert (device.eager, graphs.captures, graphs.replays) == (1, 1, 2)
    assert step(graphs, 2, 5) == 10.0
    assert step(graphs, 4, 6) == 24.0
    assert (device.eager, graphs.captures, graphs.replays) == (2, 2, 3)
    assert len(device.buffers) == 2


def test_steps_differ_in_every_size() -> None:
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record)
    base = sizes(4)
    for place in range(len(base)):
        changed = Sizes(*(number + (index == place) for index, number in enumerate(base)))
        graphs.run(changed, lambda inputs: None)
    assert graphs.captures == len(base) and graphs.replays == 0


def test_the_graph_used_longest_ago_goes_first() -> None:
    device = Fake()
    graphs = DecodeGraphs(device.forward, device.allocate, device.record, most=2)
    for rows in (1, 2, 1, 3, 1, 2):
        step(graphs, rows, 1)
    assert (graphs.captures, graphs.replays) == (4, 2)


def test_without_capturing_steps_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    device = Fake(fails=True)
    graphs = DecodeGraphs(device.forward, device.allocate, device.record)
    assert [step(graphs, 4, value) for value in (1, 2, 3)] == [4.0, 8.0, 12.0]
    assert device.eager == 3
    assert graphs.failure == "RuntimeError: operation not permitted when stream is capturing"
    assert len([record for record in caplog.records if "without CUDA graphs" in record.message]) == 1
