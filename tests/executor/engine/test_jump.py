"""Tokens that a mask forces are taken without the model, and nothing else changes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, Mask, Sample, SamplingParams
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.executor.text.stop import Stops, StopWatch
from tests.support.executor.constrained import (
    CONSTRAINTS,
    EOS,
    WIDTH,
    constrainer,
    engine_with,
    jumping,
    model,
    plain_samples,
    requests,
    tokenizer,
)
from tests.support.executor.models import served


def draws(samples: list[tuple[Sample, ...]]) -> int:
    return sum(sample.steps.draws for row in samples for sample in row)


def allowed(mask: Mask) -> list[int]:
    bits = np.zeros((1, WIDTH // 32), dtype=np.int32)
    mask.fill([mask], bits)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def test_forced_ids_are_those_that_alone_may_come() -> None:
    chance, forced = random.Random(5), 0
    for kind, source in CONSTRAINTS:
        make = constrainer().masks(kind, source)
        for _ in range(8):
            mask, ended, length = make(), False, 0
            while not ended and length < 60:
                for token in mask.forced():
                    assert not ended and token != EOS and allowed(mask) == [token]
                    ended = mask.push(token)
                    forced += 1
                    length += 1
                choices = allowed(mask)
                assert mask.forced() == []
                assert ended == (choices == [EOS])
                if ended or (token := chance.choice(choices)) == EOS:
                    break
                assert len(choices) > 1
                ended = mask.push(token)
                length += 1
    assert forced > 400


def test_samples_are_the_same() -> None:
    jumped = served(engine_with(), jumping(requests()))
    assert jumped == plain_samples()
    forced = [sample.steps.forced for row in jumped for sample in row]
    assert draws(jumped) + sum(forced) == draws(plain_samples())
    assert sum(forced) > 300
    # What is forced altogether asks the model nothing.
    assert [sample.steps.draws for sample in jumped[3]] == [0, 0, 0]
    assert all(sample.finish == "match" for sample in jumped[3])


def test_a_forced_token_has_log_probability_zero() -> None:
    for plain, jumped in zip(plain_samples(), served(engine_with(), jumping(requests())), strict=True):
        for sample, other in zip(plain, jumped, strict=True):
            assert sample.logprobs == other.logprobs and sample.logprob == other.logprob
            alone = [logprob for logprob, ids in zip(sample.logprobs, sample.steps.allowed, strict=True) if ids == 1]
            assert alone == [0.0] * len(alone)


@pytest.mark.parametrize(
    ("kv_bytes", "config"),
    [
        (1 << 23, EngineConfig(token_budget=13)),
        (1 << 23, EngineConfig(max_sequences=2)),
        (3 << 17, EngineConfig(token_budget=37)),
    ],
    ids=["chunked", "two-at-a-time", "little-memory"],
)
def test_samples_do_not_hang_on_the_schedule(kv_bytes: int, config: EngineConfig) -> None:
    reports: list[StepReport] = []
    assert served(engine_with(kv_bytes, config, reports.append), jumping(requests())) == plain_samples()
    if kv_bytes < 1 << 23:
        assert reports[-1].preemptions > 0


@pytest.mark.parametrize("most", [1, 2, 5, 12])
def test_the_length_may_end_a_forced_run(most: int) -> None:
    plain = requests(max_tokens=most, cached=most % 2 == 0)
    samples = served(engine_with(), plain)
    assert served(engine_with(), jumping(plain)) == samples
    assert any(sample.finish == "length" for row in samples for sample in row)


def test_the_context_may_end_in_a_forced_run() -> None:
    source = '{"const": {"all": ["of", "it"], "is": "fixed"}}'
    length = len(constrainer().masks("json_schema", source)().forced())
    ends = set()
    for room in (2, length - 1, length):
        context = (7,) * (model().max_positions - room)
        plain = GenerateRequest(
            context, (1, 2), SamplingParams(1.0), 99, mask=constrainer().masks("json_schema", source)
        )
        samples = served(engine_with(1 << 24), (plain,))
        assert served(engine_with(1 << 24), (replace(plain, jump=True),)) == samples
        ends |= {(sample.finish, len(sample.tokens)) for sample in samples[0]}
    assert ends == {("length", 2), ("length", length - 1), ("match", length)}


@pytest.mark.parametrize("stop", ['"kind": "p', "is", " so"])
def test_a_stop_string_may_end_a_forced_run(stop: str) -> None:
    detokenizer = Detokenizer(tokenizer().backend_tokenizer)
    plain = requests(watch=lambda index: StopWatch(detokenizer, Stops((stop,))))
    samples = served(engine_with(), plain)
    assert served(engine_with(), jumping(plain)) == samples
    assert any(sample.finish == "stop" for row in samples for sample in row)


def test_an_end_that_the_constraint_names_ends_the_sample() -> None:
    # Ids that end an output are no part of it, even where a grammar spells them out.
    ends = tuple(tokenizer().encode("!", add_special_tokens=False))
    plain = replace(requests()[5], eos=frozenset(ends))
    samples = served(engine_with(), (plain,))
    assert served(engine_with(), (replace(plain, jump=True),)) == samples
    assert {sample.finish for sample in samples[0]} == {"eos"}
