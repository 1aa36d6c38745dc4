"""One engine before another: what is drawn, what is shared, and that nobody can tell the difference."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.requests.drawing import Confidence, Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Completion,
    GenerateRequest,
    LogProbRequest,
    Sample,
    SampleConstraint,
    SamplingParams,
    Watch,
)
from qpdsl.executor.requests.routing import ExitRouting
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.executor.sample_memory.sharing_engine import SharingEngine
from tests.support.executor.token_engine import EOS, SECONDS, TokenEngine

PROMPT = (3, 1, 4)


@dataclass
class Stop:
    """A watch that ends a sample at an id, and notes what it sees."""

    id: int | None
    seen: list[int] = field(default_factory=list)

    def push(self, token: int) -> bool:
        self.seen.append(token)
        return token == self.id


def stopping(id: int | None) -> tuple[list[Stop], Callable[[int], Watch]]:
    """The watches that a request made, and what makes them."""
    made: list[Stop] = []

    def make(index: int) -> Watch:
        made.append(Stop(id))
        return made[-1]

    return made, make


def asked(*keys: int, **rest: Any) -> GenerateRequest:
    given: dict[str, Any] = {"sampling": SamplingParams(0.8), "max_tokens": 12, "eos": frozenset({EOS}), **rest}
    return GenerateRequest(given.pop("prompt", PROMPT), keys, **given)


def alone(request: GenerateRequest) -> tuple[Sample, ...]:
    """The samples from an engine that nothing else was asked of."""
    engine = TokenEngine()
    ticket = engine.submit("m", request)
    engine.run()
    return ticket.result().samples


def shared(chance: random.Random | None = None, **rest: Any) -> tuple[TokenEngine, SampleMemory, SharingEngine]:
    engine, memory = TokenEngine(chance, **rest), SampleMemory()
    return engine, memory, SharingEngine(engine, memory)


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


async def answered(engine: TokenEngine, ticket: Ticket) -> Completion:
    engine.run()
    await turns()
    return ticket.result()


def test_a_wider_request_draws_what_is_missing() -> None:
    async def main() -> None:
        engine, memory, sharing = shared()
        narrow = await answered(engine, sharing.submit("m", asked(5, 6)))
        ticket = sharing.submit("m", asked(4, 6, 7, 5))
        wide = await answered(engine, ticket)
        assert [request.keys for request in engine.requests] == [(5, 6), (4, 7)]
        assert wide.samples == alone(asked(4, 6, 7, 5))
        assert wide.samples[3] == narrow.samples[0]
        assert wide.samples[1].logprobs == narrow.samples[1].logprobs != ()
        assert wide.samples[1].steps == narrow.samples[1].steps
        saved = len(wide.samples[1].tokens) + len(wide.samples[3].tokens)
        assert (ticket.shared, ticket.saved_tokens) == (2, saved)
        assert (memory.totals.samples, memory.totals.shared_samples, memory.totals.saved_tokens) == (6, 2, saved)

    run(main())


def test_what_is_known_as_a_whole_asks_nothing() -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        first = await answered(engine, sharing.submit("m", asked(1, 2)))
        ticket = sharing.submit("m", asked(2, 1))
        assert not ticket.done
        again = await ticket
        assert len(engine.requests) == 1
        assert again.samples == first.samples[::-1]
        assert again.cached == len(PROMPT)

    run(main())


def unlike() -> dict[str, GenerateRequest]:
    """Requests that differ in one thing that a sample depends on, or that may say nothing of it."""
    _, watch = stopping(3)
    base = asked(1)
    return {
        "prompt": asked(1, prompt=(3, 1, 5)),
        "key": asked(2),
        "temperature": asked(1, sampling=SamplingParams(0.7)),
        "top_p": asked(1, sampling=SamplingParams(0.8, top_p=0.9)),
        "drawn": replace(base, drawn=2),
        "eos": replace(base, eos=frozenset({EOS, 1})),
        "stop": replace(base, watch=watch, ended_by=("3",)),
        "constraint": replace(base, constraint=SampleConstraint("regex", "a"), mask=lambda: None),  # type: ignore[arg-type, return-value]
        "exit": replace(base, exit=EarlyExit(0.5, 2)),
        "routed exit": replace(base, exit=EarlyExit(0.5, 2, route=ExitRouting())),
        "confidence": replace(base, confidence=Confidence()),
        "draft": replace(base, draft=Drafting("ngram")),
        "jump": replace(base, jump=True),
        "a watch of which nothing is known": replace(base, watch=watch),
        "a mask of which nothing is known": replace(base, mask=lambda: None),  # type: ignore[arg-type, return-value]
        "uncached": replace(base, cached=False),
    }


@pytest.mark.parametrize("name", unlike())
def test_what_differs_is_not_shared(name: str) -> None:
    async def main() -> None:
        engine, memory, sharing = shared()
        await answered(engine, sharing.submit("m", asked(1)))
        await answered(engine, sharing.submit("m", unlike()[name]))
        assert len(engine.requests) == 2
        assert memory.totals.shared_samples == 0
        await answered(engine, sharing.submit("other", asked(1)))
        assert len(engine.requests) == 3

    run(main())


@pytest.mark.parametrize("name", ["routed exit", "uncached", "a watch of which nothing is known"])
def test_what_takes_no_part_is_never_shared(name: str) -> None:
    async def main() -> None:
        engine, memory, sharing = shared()
        for _ in range(2):
            await answered(engine, sharing.submit("m", unlike()[name]))
        assert len(engine.requests) == 2
        assert memory.samples == 0

    run(main())


def test_models_that_do_not_repeat_take_no_part() -> None:
    async def main() -> None:
        engine = TokenEngine()
        sharing = SharingEngine(engine, SampleMemory(), lambda model: model != "m")
        for _ in range(2):
            await answered(engine, sharing.submit("m", asked(1)))
            await answered(engine, sharing.submit("n", asked(1)))
        assert len(engine.requests) == 3

    run(main())


def test_reading_requests_go_past() -> None:
    sent: list[object] = []

    class Reads(TokenEngine):
        def submit(self, model: str, request: Any) -> Ticket:
            sent.append(request)
            return Ticket(request, lambda ticket: None)

    sharing = SharingEngine(Reads(), SampleMemory())
    request = LogProbRequest((1, 2), (3,))
    assert sharing.submit("m", request).request is request
    assert sent == [request]


def test_greedy_samples_are_shared_by_all_seeds() -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        greedy = SamplingParams(0.0)
        first = await answered(engine, sharing.submit("m", asked(1, sampling=greedy)))
        second = await answered(engine, sharing.submit("m", asked(2, 3, sampling=greedy)))
        assert len(engine.requests) == 1
        assert second.samples == first.samples * 2
        # An exit's draws are shadowed by their keys.
        for key in (1, 2):
            await answered(engine, sharing.submit("m", asked(key, sampling=greedy, exit=EarlyExit(0.5, 2, shadow=0.1))))
        assert len(engine.requests) == 3

    run(main())


def test_equal_samples_of_one_request_are_drawn_once() -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        ticket = sharing.submit("m", asked(1, 2, 3, sampling=SamplingParams(0.0)))
        completion = await answered(engine, ticket)
        assert [request.keys for request in engine.requests] == [(1,)]
        assert completion.samples == alone(asked(1, 2, 3, sampling=SamplingParams(0.0)))
        assert ticket.shared == 2

    run(main())


@pytest.mark.parametrize("first", [2, 4, 12])
@pytest.mark.parametrize("then", [2, 4, 12])
@pytest.mark.parametrize("key", range(6))
def test_max_tokens_may_differ(key: int, first: int, then: int) -> None:
    async def main() -> None:
        engine, memory, sharing = shared()
        before = await answered(engine, sharing.submit("m", asked(key, max_tokens=first)))
        after = await answered(engine, sharing.submit("m", asked(key, max_tokens=then)))
        assert after.samples == alone(asked(key, max_tokens=then))
        (sample,) = before.samples
        # The beginning of one with near ties may have had some, or none.
        ended = sample.finish == "eos" and (len(sample.tokens) <= then or not sample.near_ties)
        assert memory.totals.shared_samples == (ended or first == then)

    run(main())


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_sample_that_a_watch_ends_is_the_beginning_of_one_without(*, in_flight: bool) -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        keys = tuple(range(40))
        whole = sharing.submit("m", asked(*keys))
        if not in_flight:
            await answered(engine, whole)
        made, watch = stopping(3)
        stopped = replace(asked(*keys, watch=watch), ended_by=(3,))
        ticket = sharing.submit("m", stopped)
        # Some have near ties, and are asked for again.
        for _ in range(3):
            engine.run()
            await turns()
        expected = alone(replace(stopped, watch=stopping(3)[1]))
        assert ticket.result().samples == expected
        told = [(sample.logprobs, sample.steps) for sample in ticket.result().samples]
        assert told == [(sample.logprobs, sample.steps) for sample in expected]
        assert sorted(stop.seen for stop in made) == sorted(sample.watch.seen for sample in expected)  # type: ignore[union-attr]
        assert whole.result().samples == alone(asked(*keys))
        ended = zip(expected, whole.result().samples, strict=True)
        cut = sum(sample.finish == "stop" and not longer.near_ties for sample, longer in ended)
        assert 5 < cut <= ticket.shared < len(keys)
        # And not the other way round: what a watch ended says nothing of how it went on.
        other = SharingEngine(engine, SampleMemory())
        await answered(engine, other.submit("m", replace(stopped, watch=stopping(3)[1])))
        assert (await answered(engine, other.submit("m", asked(*keys)))).samples == alone(asked(*keys))

    run(main())


@pytest.mark.parametrize("told", [True, False])
def test_a_sample_without_log_probabilities_cannot_stand_for_one_with(told: bool) -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        await answered(engine, sharing.submit("m", asked(1, logprobs=told)))
        other = await answered(engine, sharing.submit("m", asked(1, logprobs=not told)))
        expected = alone(asked(1, logprobs=not told))
        assert other.samples == expected
        assert other.samples[0].logprobs == expected[0].logprobs
        assert len(engine.requests) == (1 if told else 2)

    run(main())


def test_what_is_being_drawn_is_joined() -> None:
    async def main() -> None:
        engine, memory, sharing = shared()
        early, watch = stopping(3)
        late, other = stopping(3)
        request = asked(5, 19, watch=watch, ended_by=(3,))
        first = sharing.submit("m", request)
        while len(early[1].seen) < 3:
            engine.step()
        second = sharing.submit("m", replace(asked(19, 1), watch=other, ended_by=(3,)))
        # It has caught up before the next token comes.
        assert late[0].seen == early[1].seen
        engine.run()
        await turns()
        assert [sent.keys for sent in engine.requests] == [(5, 19), (1,)]
        assert first.result().samples == alone(replace(request, watch=stopping(3)[1]))
        assert second.result().samples == alone(replace(asked(19, 1), watch=stopping(3)[1], ended_by=(3,)))
        assert late[0].seen == early[1].seen
        watches = [sample.watch for sample in (*first.result().samples, *second.result().samples)]
        assert watches == [*early, *late] and len({id(one) for one in watches}) == 4
        assert memory.under_way == {}

    run(main())


def test_a_sample_is_given_up_once_nobody_waits_for_it() -> None:
    async def main() -> None:
        engine, memory, sharing = shared()
        first = sharing.submit("m", asked(1, 2, 3))
        second = sharing.submit("m", asked(2))
        first.cancel()
        assert engine.cancelled == 0
        assert {key for _, key, _ in memory.under_way} == {2}
        engine.run()
        await turns()
        assert second.result().samples == alone(asked(2))
        assert not first.done
        # The other two ended with their next token, and are not remembered.
        assert engine.drawn == len(second.result().samples[0].tokens) + 2
        assert memory.samples == 1
        third = await answered(engine, sharing.submit("m", asked(1, 2, 3)))
        assert third.samples == alone(asked(1, 2, 3))

    run(main())


def test_a_request_is_given_up_once_all_its_samples_are() -> None:
    async def main() -> None:
        engine, memory, sharing = shared()
        tickets = [sharing.submit("m", asked(1, 2)) for _ in range(3)]
        for ticket in tickets[:-1]:
            ticket.cancel()
        assert (len(engine.requests), engine.cancelled) == (1, 0)
        tickets[-1].cancel()
        assert engine.cancelled == 1
        assert memory.under_way == {}

    run(main())


def test_a_ticket_that_is_given_up_gets_no_remembered_samples() -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        await answered(engine, sharing.submit("m", asked(1)))
        ended: list[int] = []
        ticket = sharing.submit("m", asked(1))
        ticket.on_sample = lambda index, sample: ended.append(index)
        ticket.cancel()
        await turns()
        assert ended == []

    run(main())


def test_who_asked_for_what_cannot_be_served_fails_and_the_others_ask_again() -> None:
    async def main() -> None:
        engine, _, sharing = shared(poisoned=4)
        first = sharing.submit("m", asked(1, 2, 6))
        second = sharing.submit("m", asked(2, 1))
        while not first.done:
            engine.step()
        with pytest.raises(EngineError, match="poisoned"):
            first.result()
        assert not second.done
        await turns()
        assert set(engine.requests[1].keys) <= {1, 2}
        while not second.done:
            engine.step()
        with pytest.raises(EngineError, match="poisoned"):
            await second

    run(main())


def test_a_refused_request_leaves_nothing_behind() -> None:
    async def main() -> None:
        _, memory, sharing = shared()
        with pytest.raises(EngineError, match="too long"):
            sharing.submit("m", asked(1, prompt=(1,) * 10))
        assert (memory.under_way, memory.samples) == ({}, 0)

    run(main())


def test_what_runs_ahead_is_promoted_by_whoever_needs_it() -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        ahead = sharing.submit("m", asked(1, priority=1))
        sharing.submit("m", asked(1, priority=1))
        assert engine.promoted == []
        sharing.submit("m", asked(1))
        assert engine.promoted == [engine.tickets[0]]
        ahead.promote()
        assert len(engine.promoted) == 1
        other = sharing.submit("m", asked(2, priority=1))
        other.promote()
        assert engine.promoted == engine.tickets

    run(main())


def test_a_shared_sample_counts_the_seconds_that_it_took() -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        narrow, wide = sharing.submit("m", asked(1, 2)), sharing.submit("m", asked(1, 2, 3))
        engine.run()
        again = sharing.submit("m", asked(3, 2, 1))
        await turns()
        tokens = [len(sample.tokens) for sample in wide.result().samples]
        prompt = len(PROMPT) * SECONDS
        assert narrow.seconds == pytest.approx(prompt + sum(tokens[:2]) * SECONDS)
        assert wide.seconds == again.seconds == pytest.approx(prompt + sum(tokens) * SECONDS)

    run(main())


def test_an_instance_that_shares_with_itself_is_charged_once() -> None:
    async def main() -> None:
        engine, _, sharing = shared()
        await answered(engine, sharing.submit("m", asked(1)))
        own = SharingEngine(sharing, SampleMemory(charges_again=False))
        narrow = own.submit("m", asked(1, 2))
        await answered(engine, narrow)
        wide = own.submit("m", asked(1, 2, 3))
        await answered(engine, wide)
        first, second, third = (len(sample.tokens) for sample in wide.result().samples)
        prompt = len(PROMPT) * SECONDS
        assert narrow.seconds == pytest.approx(prompt + (first + second) * SECONDS)
        assert wide.seconds == pytest.approx(prompt + third * SECONDS)
        # What others drew is told; what it drew itself is not.
        assert (narrow.shared, narrow.saved_tokens, wide.shared) == (1, first, 0)
        assert [request.keys for request in engine.requests] == [(1,), (2,), (3,)]

    run(main())


def test_the_memory_holds_what_was_used_last() -> None:
    async def main() -> None:
        engine = TokenEngine()
        memory = SampleMemory(6_000)
        sharing = SharingEngine(engine, memory)
        for number in range(20):
            for prompt in ((1, number), (2, 2)):
                await answered(engine, sharing.submit("m", asked(1, prompt=prompt)))
                assert memory.bytes <= 6_000
        assert len(engine.requests) == 21
        assert 2 <= memory.samples < 20
        await answered(engine, sharing.submit("m", asked(1, prompt=(1, 0))))
        assert len(engine.requests) == 22
        memory.forget()
        assert (memory.samples, memory.bytes) == (0, 0)

    run(main())


def test_a_sample_larger_than_the_memory_is_not_kept() -> None:
    async def main() -> None:
        engine = TokenEngine()
        memory = SampleMemory(10)
        sharing = SharingEngine(engine, memory)
        assert (await answered(engine, sharing.submit("m", asked(1)))).samples == alone(asked(1))
        assert (memory.samples, memory.bytes) == (0, 0)

    run(main())


_REQUESTS = st.tuples(
    st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    st.sampled_from([PROMPT, (2, 7)]),
    st.sampled_from([SamplingParams(0.8), SamplingParams(0.0)]),
    st.sampled_from([3, 12]),
    st.sampled_from([None, 3, 5]),
    st.booleans(),
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(_REQUESTS, st.integers(0, 25), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.sampled_from([None, 7]),
    st.sampled_from([1 << 20, 3_000]),
)
def test_every_request_gets_what_it_would_get_alone(
    requests: list[tuple[Any, int, bool]], seed: int, poisoned: int | None, most: int
) -> None:
    """Requests come, and are given up, at any time; samples end in any order, fail, and are forgotten."""

    async def main() -> None:
        engine = TokenEngine(random.Random(seed), poisoned)
        memory = SampleMemory(most)
        sharing = SharingEngine(engine, memory)
        kept: list[tuple[Ticket, GenerateRequest, list[Stop]]] = []
        for (keys, prompt, sampling, length, stop, logprobs), steps, given_up in requests:
            made, watch = stopping(stop)
            request = asked(*keys, prompt=prompt, sampling=sampling, max_tokens=length, logprobs=logprobs)
            request = replace(request, watch=watch, ended_by=() if stop is None else (stop,))
            ticket = sharing.submit("m", request)
            for _ in range(steps):
                if engine.busy("m"):
                    engine.step()
            if steps % 2:
                await turns()
            if given_up:
                ticket.cancel()
            else:
                kept.append((ticket, request, made))
        for _ in range(4):
            engine.run()
            await turns()
        for ticket, request, _ in kept:
            assert ticket.done
            assert same(ticket, request, poisoned)
        assert memory.under_way == {}

    run(main())


def same(ticket: Ticket, request: GenerateRequest, poisoned: int | None) -> bool:
    """Whether a ticket came to what the request comes to alone; one that was served from before may not fail."""
    expected = alone(replace(request, watch=stopping(_stop(request))[1]))
    try:
        result = ticket.result().samples
    except EngineError:
        return poisoned in request.prompt
    told = [(sample.logprobs, sample.steps, sample.watch) for sample in result]
    return result == expected and told == [(sample.logprobs, sample.steps, sample.watch) for sample in expected]


def _stop(request: GenerateRequest) -> int | None:
    ended_by = request.ended_by
    assert isinstance(ended_by, tuple)
    return ended_by[0] if ended_by else None
