"""Arrays go to a device and back without anybody waiting, but for who asks for what comes back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.batch.staging import Staging
from tests.support.executor.fake_device import FakeLane, fake_device


def array(number: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(number, number + 50, dtype=np.int32)


def test_no_send_waits_however_many_there_are_and_buffers_are_used_again() -> None:
    with fake_device() as lane:
        staging = Staging("cpu")
        for _ in range(3):
            sent = [staging.send([array(number), np.array([number / 7])]) for number in range(9)]
            # The device is behind with all of it: each needs memory of its own.
            assert lane.waits == 0 and lane.under_way == 9 and staging.buffers == 9
            for number, (numbers, fraction) in enumerate(sent):
                assert numbers.tolist() == array(number).tolist() and fraction.item() == number / 7
            staging.start_fetch(torch.zeros(1)).wait()
            assert lane.waits == 1 and lane.under_way == 0
            lane.waits = 0


def test_a_send_goes_into_memory_that_a_graph_reads() -> None:
    with fake_device() as lane:
        inputs = torch.zeros(64, dtype=torch.int32)
        (view,) = Staging("cpu").send([array(3)], into=inputs.view(torch.uint8))
        assert inputs[:50].tolist() == view.tolist() == array(3).tolist() and lane.waits == 0


def test_what_comes_back_is_there_once_it_is_waited_for_and_stays() -> None:
    with fake_device() as lane:
        staging = Staging("cpu")
        results = torch.arange(6.0).view(2, 3)
        first = staging.start_fetch(results)
        # What is launched later may overwrite it, and may be on its way back too.
        results += 10
        second = staging.start_fetch(results)
        assert lane.waits == 0 and lane.under_way == 2
        kept = first.wait()
        assert kept.tolist() == [[0, 1, 2], [3, 4, 5]] and lane.waits == 1
        third = staging.start_fetch(results + 1)
        assert second.wait().tolist() == [[10, 11, 12], [13, 14, 15]]
        assert third.wait().tolist() == [[11, 12, 13], [14, 15, 16]]
        assert first.wait() is kept and kept.tolist() == [[0, 1, 2], [3, 4, 5]] and lane.waits == 3


def test_a_copy_that_the_device_has_done_is_not_overwritten_before_it_was_taken() -> None:
    with fake_device() as lane:
        staging = Staging("cpu")
        first = staging.start_fetch(torch.tensor([1.0]))
        second = staging.start_fetch(torch.tensor([2.0]))
        # Whoever waits for the second knows that the first is there as well.
        assert second.wait().tolist() == [2] and lane.under_way == 0
        staging.start_fetch(torch.tensor([3.0]))
        assert first.wait().tolist() == [1]


def test_the_fake_device_notices_a_host_that_does_not_wait() -> None:
    lane = FakeLane()
    memory = lane.host_memory(8)
    device, mark = torch.zeros(8, dtype=torch.uint8), lane.mark()
    lane.copy(device, memory)
    mark.set()
    memory.fill_(1)
    with pytest.raises(AssertionError, match="written while it was copied from"):
        mark.wait()
    back = lane.mark()
    lane.copy(memory.view(torch.float32), torch.ones(2))
    back.set()
    assert memory.view(torch.float32).isnan().all() and not back.reached()


def test_on_a_cpu_nothing_is_copied() -> None:
    staging = Staging("cpu")
    numbers = array(0)
    (sent,) = staging.send([numbers])
    fetched = staging.start_fetch(sent).wait()
    numbers[0] = 99
    assert not staging.asynchronous and staging.buffers == 0
    assert sent[0].item() == 99 and fetched[0] == 99
