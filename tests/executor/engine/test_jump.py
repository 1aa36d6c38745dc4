"""Tokens that a mask forces are taken without the model, and nothing else changes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, Mask, Sample, SamplingParams
from qpdsl.executor.text.constraint import Constrainer
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.executor.text.stop import StopWatch
from tests.support.executor.models import served

FOLDER = zoo.path("zoo/counting")
EOS = 4
WIDTH = 768
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 9},
        "kind": {"enum": ["person", "place"]},
        "tags": {"type": "array", "items": {"enum": ["old", "older"]}, "maxItems": 2},
        "glad": {"type": "boolean"},
    },
    "required": ["name", "kind", "tags"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    ("json_schema", json.dumps(RECORD)),
    ("json_schema", json.dumps({**RECORD, "additionalProperties": {"type": "integer"}})),
    ("json_schema", '{"enum": ["abc", "abd", 3, null, {"a": [1, 2]}]}'),
    ("json_schema", '{"const": {"all": ["of", "it"], "is": "fixed"}}'),
    ("regex", r"the answer is \d+(, surely)?"),
    ("regex", r"(yes, it is so|no, it is not so)!"),
    ("regex", "fixed"),
    ("regex", r"(|fixed)"),
    ("grammar", 'start: "(" start ")" | "[" NUM "]"\nNUM: /[0-9]{1,3}/'),
    ("grammar", 'start: "so " "it" " is" (" not")? END\nEND: "." | "!"'),
]
SAMPLINGS = [SamplingParams(0.0), SamplingParams(1.3), SamplingParams(1.1, top_k=20, top_p=0.9)]


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@cache
def constrainer() -> Constrainer:
    return Constrainer(tokenizer(), WIDTH, [EOS])


@cache
def model() -> PagedModel:
    return PagedModel(AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval())


def engine_with(kv_bytes: int = 1 << 23, config: EngineConfig | None = None, on_step: Any = None) -> PagedEngine:
    engine = PagedEngine(config, on_step, kv_bytes)
    engine.add("m", model())
    return engine


@cache
def requests(**changes: Any) -> tuple[GenerateRequest, ...]:
    """Three samples under each constraint, by each sampling in turn."""
    prompt = tuple(tokenizer().encode("Write it down as JSON, please:", add_special_tokens=False))
    return tuple(
        replace(
            GenerateRequest(
                prompt,
                (10 * index, 10 * index + 1, 10 * index + 2),
                SAMPLINGS[index % 3],
                40,
                frozenset({EOS}),
                mask=constrainer().masks(kind, source),
            ),
            **changes,
        )
        for index, (kind, source) in enumerate([*CONSTRAINTS, *CONSTRAINTS[:2], *CONSTRAINTS[:2]])
    )


def jumping(plain: tuple[GenerateRequest, ...]) -> tuple[GenerateRequest, ...]:
    return tuple(replace(request, jump=True) for request in plain)


@cache
def plain_samples() -> list[tuple[Sample, ...]]:
    return served(engine_with(), requests())


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
    detokenizer = Detokenizer(tokenizer())
    plain = requests(watch=lambda index: StopWatch(detokenizer, stop))
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
