"""When rows start: one always, another while the engine has fewer sequences than the floor, and never too many."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qpdsl.runs.runner import RowQueue, start_rows
from qpdsl.session.session import Session


class Working(Session):
    """A session whose engine has as many sequences as the test says."""

    sequences = 0

    @property
    def busy(self) -> int:
        return self.sequences

    def has(self, sequences: int) -> None:
        """Says so to whoever waits, as a step of the engine does."""
        self.sequences = sequences
        self._note_busy()


class Rows:
    """Rows that ask the engine for four sequences each, and end when they are told to."""

    def __init__(self, floor: int, sequences: int = 0, in_flight: int | None = None) -> None:
        self.session = Working()
        self.session.sequences = sequences
        self.started: list[int] = []
        self.ended: list[int] = []
        self.queue: RowQueue[int] = RowQueue()
        self._limits = floor, in_flight
        self._ends: dict[int, asyncio.Event] = {}

    def start(self, *numbers: int) -> asyncio.Task[None]:
        """Starts the loop, with these rows and no others to come."""
        self._ends = {number: asyncio.Event() for number in numbers}
        self.queue.put(*numbers)
        self.queue.close()
        return asyncio.create_task(start_rows(self.session, self.queue, lambda number: self._limits, self._row))

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self._ends[number].set()

    async def _row(self, number: int) -> None:
        self.started.append(number)
        self.session.has(self.session.sequences + 4)
        try:
            await self._ends[number].wait()
            if number < 0:
                raise ValueError("the row failed")
            self.ended.append(number)
        finally:
            self.session.sequences -= 4


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_rows_start_up_to_the_floor_and_one_more_when_there_is_less_to_do() -> None:
    async def main() -> None:
        rows = Rows(floor=8)
        task = rows.start(0, 1, 2, 3)
        await settled()
        # The third would find eight sequences at work.
        assert rows.started == [0, 1]
        rows.session.has(7)
        await settled()
        assert rows.started == [0, 1, 2]
        rows.end(0, 1, 2, 3)
        await task
        assert sorted(rows.ended) == [0, 1, 2, 3]

    run(main())


def test_one_row_is_let_in_however_busy_the_session_is() -> None:
    async def main() -> None:
        rows = Rows(floor=8, sequences=100)
        task = rows.start(0, 1)
        await settled()
        assert rows.started == [0]
        rows.end(0)
        await settled()
        # Nobody steps an engine here: that no row runs is enough.
        assert rows.started == [0, 1] and rows.session.sequences > 8
        rows.end(1)
        await task

    run(main())


def test_a_row_that_is_given_back_while_it_waits_never_starts_and_holds_nobody_up() -> None:
    async def main() -> None:
        rows = Rows(floor=4)
        task = rows.start(0, 1, 2)
        await settled()
        assert rows.started == [0]
        assert rows.queue.give_back(1) == [2]
        assert rows.queue.give_back(5) == [1]
        rows.session.has(0)
        await settled()
        assert rows.started == [0]
        rows.end(0)
        await task
        # Whoever waited has left the session.
        assert rows.session._floors == []

    run(main())


def test_a_row_that_fails_ends_all() -> None:
    async def main() -> None:
        rows = Rows(floor=100)
        task = rows.start(-1, 1)
        await settled()
        assert rows.started == [-1, 1]
        rows.end(-1)
        with pytest.raises(ValueError, match="the row failed"):
            await task
        assert rows.ended == [] and rows.session.sequences == 0

    run(main())


def test_a_loop_that_is_cancelled_ends_its_rows_and_leaves_the_session() -> None:
    async def main() -> None:
        rows = Rows(floor=4)
        task = rows.start(0, 1)
        await settled()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rows.started == [0] and rows.session.sequences == 0 and rows.session._floors == []

    run(main())


def test_rows_may_come_while_others_run() -> None:
    async def main() -> None:
        rows = Rows(floor=100)
        task = asyncio.create_task(start_rows(rows.session, rows.queue, lambda number: (100, None), rows._row))
        rows._ends = {0: asyncio.Event(), 1: asyncio.Event()}
        await settled()
        assert rows.started == []
        for number in range(2):
            rows.queue.put(number)
            await settled()
            rows.end(number)
        rows.queue.close()
        await task
        assert rows.ended == [0, 1]

    run(main())


def test_no_more_rows_run_than_may_be_in_flight() -> None:
    async def main() -> None:
        rows = Rows(floor=100, in_flight=2)
        task = rows.start(0, 1, 2, 3)
        await settled()
        assert rows.started == [0, 1]
        # That the engine has less to do lets nobody in.
        rows.session.has(0)
        await settled()
        assert rows.started == [0, 1]
        rows.end(1)
        await settled()
        assert rows.started == [0, 1, 2]
        rows.end(0, 2, 3)
        await task

    run(main())
