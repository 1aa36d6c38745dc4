"""When rows start: one always, another while the engine has fewer sequences than the floor, and never too many."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qpdsl.dataset.admission import Admission
from qpdsl.session import Session


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

    def __init__(self, session: Working, admission: Admission) -> None:
        self.started: list[int] = []
        self._session, self._admission = session, admission
        self._ends: dict[int, asyncio.Event] = {}

    def start(self, number: int) -> asyncio.Task[int]:
        self._ends[number] = asyncio.Event()
        return asyncio.create_task(self._admission.run(self._session, self._row(number)))

    def end(self, number: int) -> None:
        self._ends[number].set()

    async def _row(self, number: int) -> int:
        self.started.append(number)
        self._session.has(self._session.sequences + 4)
        try:
            await self._ends[number].wait()
            if number < 0:
                raise ValueError("the row failed")
            return number
        finally:
            self._session.sequences -= 4


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def rows_of(floor: int, sequences: int = 0, in_flight: int | None = None) -> tuple[Working, Rows]:
    session = Working()
    session.sequences = sequences
    return session, Rows(session, Admission(floor, in_flight))


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_rows_start_up_to_the_floor_and_one_more_when_there_is_less_to_do() -> None:
    async def main() -> None:
        session, rows = rows_of(floor=8)
        tasks = [rows.start(number) for number in range(4)]
        await settled()
        # The third would find eight sequences at work.
        assert rows.started == [0, 1]
        session.has(7)
        await settled()
        assert rows.started == [0, 1, 2]
        for number in range(4):
            rows.end(number)
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3]

    run(main())


def test_one_row_is_let_in_however_busy_the_session_is() -> None:
    async def main() -> None:
        session, rows = rows_of(floor=8, sequences=100)
        tasks = [rows.start(0), rows.start(1)]
        await settled()
        assert rows.started == [0]
        rows.end(0)
        # Nobody steps an engine here: that no row runs is enough.
        assert await tasks[0] == 0
        await settled()
        assert rows.started == [0, 1] and session.sequences > 8
        rows.end(1)
        assert await tasks[1] == 1

    run(main())


def test_a_row_that_is_cancelled_while_it_waits_never_starts_and_holds_nobody_up() -> None:
    async def main() -> None:
        session, rows = rows_of(floor=4)
        first, given_up, behind, last = (rows.start(number) for number in range(4))
        await settled()
        assert rows.started == [0]
        # One waits for the engine, the other for its turn.
        given_up.cancel()
        behind.cancel()
        await settled()
        assert given_up.cancelled() and behind.cancelled()
        session.has(0)
        await settled()
        assert rows.started == [0, 3]
        rows.end(0)
        rows.end(3)
        assert (await first, await last) == (0, 3)
        # Whoever waited has left the session.
        assert session._floors == []

    run(main())


def test_a_row_that_fails_makes_room() -> None:
    async def main() -> None:
        _, rows = rows_of(floor=1)
        tasks = [rows.start(-1), rows.start(1)]
        await settled()
        rows.end(-1)
        with pytest.raises(ValueError, match="the row failed"):
            await tasks[0]
        await settled()
        assert rows.started == [-1, 1]
        rows.end(1)
        assert await tasks[1] == 1

    run(main())


def test_no_more_rows_run_than_may_be_in_flight() -> None:
    async def main() -> None:
        session, rows = rows_of(floor=100, in_flight=2)
        tasks = [rows.start(number) for number in range(4)]
        await settled()
        assert rows.started == [0, 1]
        # That the engine has less to do lets nobody in.
        session.has(0)
        await settled()
        assert rows.started == [0, 1]
        rows.end(1)
        await settled()
        assert rows.started == [0, 1, 2]
        for number in (0, 2, 3):
            rows.end(number)
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3]

    run(main())
