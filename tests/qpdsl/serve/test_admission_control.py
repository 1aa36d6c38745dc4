"""Who is let in, in which order, that keys share the places, and that none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")

from qpdsl.executor.requests.request import Client
from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.http.admission_control import AdmissionControl


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_order_of_those_that_wait() -> None:
    async def check() -> None:
        admission, order = AdmissionControl(1, 10), list[str]()
        await admission.enter(Client())

        async def ask(client: Client) -> None:
            await admission.enter(client)
            order.append(client.name)
            admission.leave(0.1)

        clients = [
            Client("first"),
            Client("second"),
            Client("due later", 0, 20.0),
            Client("due soon", 0, 10.0),
            Client("urgent", 1),
            Client("not urgent", -1, 1.0),
        ]
        tasks = [asyncio.create_task(ask(client)) for client in clients]
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
        await admission.enter(Client())
        gone, stays = asyncio.create_task(admission.enter(Client())), asyncio.create_task(admission.enter(Client()))
        await settle()
        with pytest.raises(Refusal) as full:
            await admission.enter(Client())
        assert full.value.status == 429 and full.value.retry_after is not None
        gone.cancel()
        await settle()
        assert admission.waiting == 1
        admission.leave(0.1)
        await stays
        # One is cancelled in the moment in which it was let in.
        late = asyncio.create_task(admission.enter(Client()))
        await settle()
        admission.leave(0.1)
        late.cancel()
        await settle()
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(check())


def test_it_drains_and_turns_away() -> None:
    async def check() -> None:
        admission = AdmissionControl(1, 2)
        await admission.enter(Client())
        waits = asyncio.create_task(admission.enter(Client()))
        await settle()
        drained = asyncio.create_task(admission.drained())
        await settle()
        with pytest.raises(Refusal) as ending:
            await admission.enter(Client())
        assert ending.value.status == 503 and not drained.done()
        admission.give_up()
        with pytest.raises(Refusal):
            await waits
        admission.leave(0.1)
        await asyncio.wait_for(drained, 1)
        assert admission.running == 0

    asyncio.run(check())


def order_of(asked: Sequence[tuple[str, int]], places: int = 1, per_key: int | None = None) -> list[int]:
    """In which order requests of these keys and urgencies are let in, each for one turn, where all come at once."""

    async def check() -> list[int]:
        admission, order = AdmissionControl(places, len(asked), max_per_key=per_key), list[int]()
        running: Counter[str] = Counter()
        for place in range(places):
            await admission.enter(Client(), f"first {place}")

        async def ask(number: int) -> None:
            key, urgency = asked[number]
            await admission.enter(Client(str(number), urgency), key)
            order.append(number)
            running[key] += 1
            assert running[key] <= (per_key or places)
            await asyncio.sleep(0)
            running[key] -= 1
            admission.leave(0.1, key)

        tasks = [asyncio.create_task(ask(number)) for number in range(len(asked))]
        await settle()
        for place in range(places):
            admission.leave(0.1, f"first {place}")
        await asyncio.gather(*tasks)
        assert (admission.running, admission.waiting) == (0, 0)
        return order

    return asyncio.run(check())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), min_size=1, max_size=40),
    st.integers(1, 4),
    st.none() | st.integers(1, 3),
)
def test_all_get_in_and_no_key_has_more_than_its_own(
    asked: list[tuple[str, int]], places: int, per_key: int | None
) -> None:
    assert sorted(order_of(asked, places, per_key)) == list(range(len(asked)))


def test_keys_share_the_places() -> None:
    """One key asks nine times before the other does, and is urgent: the other one is second."""
    order = order_of([("alice", 9)] * 9 + [("bob", 0)])
    assert order.index(9) == 1


def test_nobody_waits_for_ever() -> None:
    """Of 33 that are let in one is the oldest, however urgent the others are."""

    async def check() -> int:
        admission, let_in = AdmissionControl(1, 200), 0
        await admission.enter(Client())
        waits = asyncio.create_task(admission.enter(Client("old", -9)))
        await settle()
        while not waits.done():
            young = asyncio.create_task(admission.enter(Client("young", 9)))
            await settle()
            admission.leave(0.1)
            let_in += 1
            await settle()
            young.cancel()
        return let_in

    assert asyncio.run(check()) <= 33


def test_a_full_queue_turns_away_the_key_that_fills_it() -> None:
    async def check() -> None:
        admission = AdmissionControl(1, 4)
        await admission.enter(Client(), "alice")
        flood = [asyncio.create_task(admission.enter(Client(), "alice")) for _ in range(4)]
        await settle()
        bob = asyncio.create_task(admission.enter(Client(), "bob"))
        await settle()
        refused = [task for task in flood if task.done()]
        assert refused == flood[-1:] and admission.waiting == 4
        with pytest.raises(Refusal) as full:
            await refused[0]
        assert full.value.status == 429 and not bob.done()
        # The one that has filled it is refused itself, at once.
        with pytest.raises(Refusal):
            await admission.enter(Client(), "alice")
        admission.leave(0.1, "alice")
        await bob

    asyncio.run(check())
