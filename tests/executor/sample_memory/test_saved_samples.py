"""What is saved of a row's requests: whole to the last bit, and under what it depends on alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qpdsl.executor.requests.drawing import Confidence, Drafting, DrawFigures
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Completion,
    GenerateRequest,
    LogProbRequest,
    ReadingRequest,
    ReadRequest,
    Sample,
    SamplingParams,
    StepCounts,
    TreeRequest,
    Watch,
)
from qpdsl.executor.requests.ticket import EngineSeconds, Ticket
from qpdsl.executor.sample_memory.kept_sample import DrawCost
from qpdsl.executor.sample_memory.replay_engine import Asked, NotSaved, ReplayEngine
from qpdsl.executor.sample_memory.saved_samples import (
    RowSamples,
    SampleRecorder,
    SavedSample,
    read_digests,
    source_digest,
)
from tests.support.executor.token_engine import EOS, TokenEngine

CONTENTS = {"m": "digest of m"}


def asked(*keys: int, **rest: Any) -> GenerateRequest:
    given: dict[str, Any] = {"sampling": SamplingParams(0.8), "max_tokens": 12, "eos": frozenset({EOS}), **rest}
    return GenerateRequest((3, 1, 4), keys, **given)


class Model(TokenEngine):
    """What it reads is a hash of what stands before it and of what is read."""

    def submit(self, model: str, request: Any) -> Ticket:
        if request.reading is None:
            return super().submit(model, request)
        ticket = Ticket(request, lambda _: None)
        asyncio.get_running_loop().call_soon(ticket.finish_read, self._values(request), 0)
        return ticket

    def _values(self, request: ReadingRequest) -> list[tuple[float, ...]]:
        # By what a value depends on, as the digest has it: the engine itself is not what is tested.
        digests = read_digests("", request)
        return [tuple(int.from_bytes(digest[:4], "little") / 3 for digest in place) for place in digests]


class Stop:
    """A watch that ends a sample at an id."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.seen: list[int] = []

    def push(self, token: int) -> bool:
        self.seen.append(token)
        return token == self.id


def stopping(id: int) -> Callable[[int], Watch]:
    return lambda index: Stop(id)


def completed(engine: Engine, *requests: Any) -> list[Completion]:
    """What an engine answers to requests, one after the other."""

    async def run() -> list[Completion]:
        driver = asyncio.create_task(engine.drive())
        try:
            return [await engine.submit("m", request) for request in requests]
        finally:
            driver.cancel()

    return asyncio.run(run())


def recorded(*requests: Any) -> tuple[list[Completion], RowSamples]:
    """What a model answers, and what is saved of it."""
    recorder = SampleRecorder(CONTENTS)
    found = completed(recorder.engine(Model()), *requests)
    return found, RowSamples.decoded(recorder.recorded().encoded())


def replayed(saved: RowSamples, *requests: Any) -> tuple[list[Completion], Asked]:
    """What the samples answer, over an engine that has no model."""
    counts = Asked()
    return completed(ReplayEngine.before(Model(), saved, CONTENTS, counts, draws=False), *requests), counts


def test_samples_are_the_same_to_the_last_bit() -> None:
    plain = Sample((5, 6, EOS), "eos", -0.1, 0, logprobs=(-0.1, 1 / 3, -1e-300), steps=StepCounts(3, 3))
    odd = Sample(
        (5, 6), "unsure", 0.0, 2, logprobs=(0.0, 0.0), steps=StepCounts(3, 2, allowed=(1, 2), arms=(("dense", 2),)),
        confidence=Confidence(share=0.2), figures=(DrawFigures(0.1, 0.2, float("inf")),) * 2, billed=7, thought=1,
    )  # fmt: skip
    cost = DrawCost(EngineSeconds(0.25, 0.5), 5)
    drawn = (
        SavedSample(b"s" * 12, b"p" * 12, 2**63, 12, plain, True, False, cost),
        SavedSample(b"t" * 12, b"p" * 12, 0, 8, odd, False, True, cost),
    )
    saved = RowSamples(drawn, {b"r" * 12: (1 / 3, 0.25)}, {"digest": {"eos": [1]}})
    again = RowSamples.decoded(saved.encoded())
    assert again == saved
    assert again.drawn[0].cost.forwards == cost.forwards


@pytest.mark.parametrize("data", [b"", b"no samples", RowSamples().encoded()[:-3]])
def test_what_is_no_samples_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"samples|cut off"):
        RowSamples.decoded(data)


def test_a_sample_depends_on_what_draws_it_and_on_nothing_else() -> None:
    base = source_digest("m", asked(1))
    alike = [
        asked(2, 3), asked(1, max_tokens=5), asked(1, jump=True), asked(1, draft=Drafting("ngram")),
        asked(1, logprobs=False), asked(1, priority=1), asked(1, eos=frozenset({EOS})), asked(1, cached=False),
    ]  # fmt: skip
    assert {source_digest("m", request) for request in alike} == {base}
    other = [
        source_digest("n", asked(1)), source_digest("m", replace(asked(1), prompt=(3, 1, 5))),
        source_digest("m", asked(1, sampling=SamplingParams(0.7))), source_digest("m", asked(1, rank=0)),
        source_digest("m", asked(1, rank=0), 1), source_digest("m", asked(1, watch=stopping(3), ended_by=("3",))),
    ]  # fmt: skip
    assert len({base, *other}) == 1 + len(other)
    assert source_digest("m", asked(1, watch=stopping(3))) is None


def test_a_number_is_the_same_wherever_it_was_read() -> None:
    tree = read_digests("m", TreeRequest((3, 1), ((5, 6), (5, 7)), end=(9,)))
    first = read_digests("m", LogProbRequest((3, 1), (5, 6), end=(9,)))
    second = read_digests("m", LogProbRequest((3, 1), (5, 7), end=(9,)))
    flat = [digest for place in tree for digest in place]
    assert {digest for place in (*first, *second) for digest in place} == {*flat}
    assert len({*flat}) == len(flat) == 5
    parts = [
        read_digests("m", ReadRequest((1, 2, 3, 4), (1, 3), (7, 8))),
        read_digests("m", ReadRequest((1, 2), (1,), (8, 7))),
    ]
    assert parts[0][0] == parts[1][0][::-1]


def test_what_was_saved_answers_without_the_model() -> None:
    reads: list[ReadingRequest] = [ReadRequest((3, 1, 4), (1, 2), (5, 6)), TreeRequest((3, 1), ((5, 6), (5, 7)))]
    known, saved = recorded(asked(1, 2, 3, 4), *reads)
    found, counts = replayed(saved, asked(1, 2), asked(4, 1), ReadRequest((3, 1), (1,), (5, 6)), reads[1])
    samples = known[0].samples
    assert found[0].samples == samples[:2]
    assert found[1].samples == (samples[3], samples[0])
    assert found[2].logits == known[1].logits[:1]
    assert found[3].logprobs == known[2].logprobs
    assert counts == Asked()


def test_a_sample_is_cut_where_another_request_ends_it() -> None:
    drawn = recorded(asked(*range(30)))[0][0].samples
    # Where a near tie was is not known, so that what has one is not cut.
    keys = [key for key, sample in enumerate(drawn) if not sample.near_ties]
    requests = [asked(*keys, max_tokens=4), asked(*keys, watch=stopping(5), ended_by=("5",))]
    known, _ = recorded(*requests)
    _, saved = recorded(asked(*keys))
    found, counts = replayed(saved, *requests)
    assert [one.samples for one in found] == [one.samples for one in known]
    assert {sample.finish for one in found for sample in one.samples} == {"length", "stop", "eos"}
    assert counts == Asked()


def test_what_was_not_drawn_is_missing() -> None:
    _, saved = recorded(asked(1, 2), asked(1, max_tokens=3))
    with pytest.raises(NotSaved, match="2 samples were not drawn"):
        replayed(saved, asked(1, 5, 6))
    with pytest.raises(EngineError):
        replayed(saved, replace(asked(1), prompt=(3, 1, 5)))


def test_spare_work_is_missing_once_it_is_needed() -> None:
    _, saved = recorded(asked(1))
    counts = Asked()

    async def run() -> None:
        engine = ReplayEngine.before(Model(), saved, CONTENTS, counts, draws=False)
        ticket = engine.submit("m", asked(7, priority=1))
        await asyncio.sleep(0)
        assert (counts.missing, ticket.done) == (0, False)
        ticket.promote()
        with pytest.raises(NotSaved):
            await ticket

    asyncio.run(run())
    assert counts.missing == 1


def test_missing_samples_are_drawn_where_that_is_permitted() -> None:
    known, _ = recorded(asked(1, 2, 3))
    _, saved = recorded(asked(1, 2))
    counts = Asked()
    engine = ReplayEngine.before(Model(), saved, CONTENTS, counts, draws=True)
    assert completed(engine, asked(1, 2, 3))[0].samples == known[0].samples
    assert counts.drawn == {"m": 1}
