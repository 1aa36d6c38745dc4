"""Who is let in, in which order, and that no place is lost."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi", reason="serving needs qpdsl[serve]")

from qpdsl.executor.requests.request import Owner
from qpdsl.serve.http.admission_control import AdmissionControl
from qpdsl.serve.refusal import Refusal


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_order_of_those_that_wait() -> None:
    async def check() -> None:
        admission, order = AdmissionControl(1, 10), list[str]()
        await admission.enter(Owner())

        async def ask(owner: Owner) -> None:
            await admission.enter(owner)
            order.append(owner.name)
            admission.leave(0.1)

        owners = [
            Owner("first"),
            Owner("second"),
            Owner("due later", 0, 20.0),
            Owner("due soon", 0, 10.0),
            Owner("urgent", 1),
            Owner("not urgent", -1, 1.0),
        ]
        tasks = [asyncio.create_task(ask(owner)) for owner in owners]
        await settle()
        assert (admission.running, admission.waiting) == (1, 6)
        admission.leave(0.1)
        await asyncio.gather(*tasks)
        assert order == ["urgent", "due soon", "due later", "first", "second", "not urgent"]
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(check())


def test_one_that_goes_away_while_it_waits_gives_its_place_up() -> None:
    async def check() -> None:
        admission = AdmissionControl(1, 2)
        await admission.enter(Owner())
        gone, stays = asyncio.create_task(admission.enter(Owner())), asyncio.create_task(admission.enter(Owner()))
        await settle()
        with pytest.raises(Refusal) as full:
            await admission.enter(Owner())
        assert full.value.status == 429 and full.value.retry_after is not None
        gone.cancel()
        await settle()
        assert admission.waiting == 1
        admission.leave(0.1)
        await stays
        # One is cancelled in the moment in which it was let in.
        late = asyncio.create_task(admission.enter(Owner()))
        await settle()
        admission.leave(0.1)
        late.cancel()
        await settle()
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(check())


def test_it_drains_and_turns_away() -> None:
    async def check() -> None:
        admission = AdmissionControl(1, 2)
        await admission.enter(Owner())
        waits = asyncio.create_task(admission.enter(Owner()))
        await settle()
        drained = asyncio.create_task(admission.drained())
        await settle()
        with pytest.raises(Refusal) as ending:
            await admission.enter(Owner())
        assert ending.value.status == 503 and not drained.done()
        admission.turn_away()
        with pytest.raises(Refusal):
            await waits
        admission.leave(0.1)
        await asyncio.wait_for(drained, 1)
        assert admission.running == 0

    asyncio.run(check())
