"""How the threads of a forward wait for each other; `engine/model/test_native_stack.py` tests what it computes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from qpdsl.executor.kernels.llvm.compile import TEAM, Library, vector_width
from qpdsl.executor.kernels.llvm.forward import BARRIER_NUMBERS, emit_wait

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_no_thread_goes_on_before_all_have_come(threads: int) -> None:
    library = Library({"wait": partial(emit_wait)})
    wait = library["wait"]
    barrier = torch.zeros(BARRIER_NUMBERS, dtype=torch.int32)
    rounds, come, behind = 50, [0] * threads, []

    def job(number: int) -> None:
        for turn in range(1, rounds + 1):
            come[number] = turn
            wait(barrier.data_ptr(), threads)
            if min(come) < turn:
                behind.append(turn)

    TEAM.run(threads, job)
    assert come == [rounds] * threads and not behind
