"""Drafts are as long as it pays, by what is measured, and cost next to nothing where they do not pay."""

from __future__ import annotations

import random

import pytest

from qpdsl.executor.engine.draft.pace import Pace, StepTimes
from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

DRAFTING = Drafting("model", "small", length=8)


def samples_of(count: int) -> list[Sequence]:
    request = GenerateRequest((1, 2), tuple(range(count)), SamplingParams(1), 1000, draft=DRAFTING)
    ticket = Ticket(request, lambda ticket: None)
    return [Sequence.of(ticket, request) for _ in range(count)]


def lengths_of(pace: Pace, samples: list[Sequence]) -> list[int]:
    stage, batch = pace.stage(samples[0]), len(samples)
    return (
        pace.lengths(stage, samples, [DRAFTING.length] * batch, batch) if pace.may_draft(stage, batch) else [0] * batch
    )


def ratio(alpha: float, row_cost: float, level_cost: float, batch: int = 1, steps: int = 2000) -> tuple[float, float]:
    """The speed-up over no drafts, and the mean tokens that were drafted a step.

    A step of b rows takes 1 + row_cost · (b − 1) seconds, a level of drafts `level_cost`.
    """
    rng, pace, samples = random.Random(1), Pace(), samples_of(batch)
    seconds, tokens, drafted = 0.0, 0, 0

    def step_seconds(rows: int) -> float:
        return (1 + row_cost * (rows - 1)) * rng.uniform(0.95, 1.05)

    for _ in range(steps):
        stage = pace.stage(samples[0])
        lengths = lengths_of(pace, samples)
        if any(lengths):
            pace.drafted(stage, samples, lengths, level_cost * max(lengths))
            seconds += level_cost * max(lengths)
        gained = 0
        for sample, length in zip(samples, lengths, strict=True):
            right = next((count for count in range(length) if rng.random() >= alpha), length)
            pace.checked(sample, right, right + (right < length))
            gained += 1 + right
        took = step_seconds(batch + sum(lengths))
        pace.ran(samples, gained, batch + sum(lengths), took)
        seconds, tokens, drafted = seconds + took, tokens + gained, drafted + sum(lengths)
    plain = batch / (1 + row_cost * (batch - 1))
    return tokens / seconds / plain, drafted / steps


@pytest.mark.parametrize(
    ("alpha", "row_cost", "level_cost", "batch", "least"),
    [
        (0.9, 0.05, 0.2, 1, 1.9),
        (0.8, 0.02, 0.1, 4, 1.8),
        (0.5, 0.05, 0.0, 1, 1.5),
        (0.95, 1.0, 0.0, 1, 0.97),
        (0.5, 0.05, 1.0, 1, 0.97),
        (0.05, 0.05, 0.02, 1, 0.97),
        (0.2, 0.9, 0.01, 64, 0.97),
        (0.6, 0.05, 0.3, 16, 0.97),
    ],
)
def test_drafts_gain_where_they_can_and_lose_next_to_nothing_elsewhere(
    alpha: float, row_cost: float, level_cost: float, batch: int, least: float
) -> None:
    speedup, _ = ratio(alpha, row_cost, level_cost, batch)
    assert speedup >= least


def test_drafts_are_longer_where_more_of_them_is_right() -> None:
    lengths = [ratio(alpha, 0.05, 0.05)[1] for alpha in (0.1, 0.5, 0.9)]
    assert lengths[0] < 0.7 < lengths[1] < 3.5 < lengths[2]


def test_drafts_that_did_not_pay_come_back_when_they_would() -> None:
    pace, (sample,) = Pace(), samples_of(1)
    stage = pace.stage(sample)
    drafted: list[int] = []
    for step in range(3000):
        (length,) = lengths_of(pace, [sample])
        right = length if step >= 1000 else 0
        if length:
            pace.drafted(stage, [sample], [length], 0.05 * length)
            pace.checked(sample, right, right + (right < length))
        pace.ran([sample], 1 + right, 1 + length, 1 + 0.05 * length)
        drafted.append(length)
    assert sum(drafted[200:1000]) < 100 and sum(drafted[2000:]) > 5000


def test_a_drafter_reads_a_prompt_where_the_tokens_to_come_will_save_that_much() -> None:
    def served(max_tokens: int, count: int) -> tuple[float, int]:
        """Seconds a token, and how many samples were drafted for. A step takes 1 s, a start 20 s, a level 0.1 s."""
        pace, seconds, tokens, begun = Pace(), 0.0, 0, 0
        for _ in range(count):
            request = GenerateRequest(tuple(range(100)), (1,), SamplingParams(1), max_tokens, draft=DRAFTING)
            sample = Sequence.of(Ticket(request, lambda ticket: None), request)
            started = False
            while sample.drawn < max_tokens:
                stage = pace.stage(sample)
                (length,) = lengths_of(pace, [sample])
                if length:
                    took = 0.1 * length + (0 if started else 20)
                    started = True
                    pace.drafted(stage, [sample], [length], took)
                    pace.checked(sample, length, length)
                    seconds += took
                pace.ran([sample], 1 + length, 1 + length, 1)
                sample.tokens += [7] * (1 + length)
                seconds += 1
            tokens += sample.drawn
            begun += started
            pace.forget(sample)
        return seconds / tokens, begun

    long, short = served(200, 20), served(12, 20)
    assert long[0] < 0.4 and long[1] == 20
    assert short[0] < 1.03 and short[1] == 0


def test_times_are_between_those_that_were_measured() -> None:
    times = StepTimes()
    assert times.seconds(4) == 0 and not times.knows(2)
    for seconds in (1.2, 9.0, 1.1):
        times.measured(2, seconds)
    assert times.knows(2) and times.seconds(2) == 1.1 and times.seconds(1) == 1.1
    times.measured(6, 2.1)
    assert times.seconds(4) == pytest.approx(1.6) and times.seconds(24) == pytest.approx(4.2)
    times.measured(40, 0.5)
    assert times.seconds(2) == times.seconds(40) == 0.5
