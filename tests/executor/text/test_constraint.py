"""Constrained samples satisfy their constraint, and are the same whatever the scheduler does to them."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Mask, Sample, SamplingParams
from qpdsl.executor.text.constraint import Constrainer, ConstraintError
from qpdsl.planner.names.constraint_schema import as_constraint
from tests.support.executor.models import served

FOLDER = zoo.path("zoo/counting")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "chess"]}, "maxItems": 3},
        "glad": {"type": "boolean"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CONSTRAINTS: list[tuple[str, str, Callable[[str], bool]]] = [
    ("json_schema", json.dumps(PERSON), lambda text: is_person(json.loads(text))),
    ("json_schema", '{"type": "integer", "minimum": 7, "maximum": 1250}', lambda text: 7 <= json.loads(text) <= 1250),
    ("json_schema", '{"enum": ["a", "ab", 3, null]}', lambda text: json.loads(text) in ("a", "ab", 3, None)),
    *[
        ("regex", regex, lambda text, regex=regex: re.fullmatch(regex, text) is not None)
        for regex in (r"\d+", r"-?\d{1,3}(\.\d\d)?", r"[a-z]+( [a-z]+){2}\.", r"yes|no|yes, but", r"(ab|a)*c", "x?")
    ],
    (
        "grammar",
        'start: "(" start ")" | NUM\nNUM: /[0-9]{1,4}/',
        lambda text: re.fullmatch(r"\(*\d{1,4}\)*", text) is not None,
    ),
]


def is_person(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"name", "age", "tags"} <= set(value) <= set(PERSON["properties"])
        and 1 <= len(value["name"]) <= 12
        and 0 <= value["age"] <= 150
        and len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "b", "chess"}
        and isinstance(value.get("glad", True), bool)
    )


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@cache
def constrainer() -> Constrainer:
    return Constrainer(tokenizer(), 768, [4])


def model() -> PagedModel:
    return PagedModel(AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval())


def prompt(text: str) -> tuple[int, ...]:
    messages = [{"role": "user", "content": text}]
    return tuple(tokenizer().apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """Four samples under each constraint, hot, with and without filters, some among them under none."""
    made = []
    for index, (kind, source, _) in enumerate([*CONSTRAINTS, ("", "", bool)]):
        sampling = [SamplingParams(1.5), SamplingParams(1.2, top_k=40, top_p=0.95), SamplingParams(3.0, min_p=0.01)]
        keys = tuple(100 * index + key for key in range(4))
        mask = constrainer().masks(kind, source) if kind else None
        text = f"Extract the person in this note as JSON: Anna Berg is {index} years old."
        made.append(GenerateRequest(prompt(text), keys, sampling[index % 3], 60, frozenset({4}), None, mask))
    return tuple(made)


@cache
def together() -> list[tuple[Sample, ...]]:
    engine = PagedEngine()
    engine.add("m", model())
    return served(engine, requests())


def test_what_is_finished_satisfies_its_constraint() -> None:
    finished = 0
    for (_, source, holds), samples in zip(CONSTRAINTS, together(), strict=False):
        for sample in samples:
            tokens = sample.tokens[:-1] if sample.finish == "eos" else sample.tokens
            text = tokenizer().decode(tokens)
            if sample.finish in ("match", "eos"):
                finished += 1
                assert holds(text), (source, text)
            else:
                assert len(sample.tokens) == 60
    assert finished > 2 * len(CONSTRAINTS)
    assert {sample.finish for samples in together() for sample in samples} == {"eos", "match", "length"}


@pytest.mark.parametrize(
    ("kv_bytes", "config"),
    [
        (1 << 23, EngineConfig(token_budget=20)),
        (1 << 23, EngineConfig(max_sequences=3)),
        (3 << 18, EngineConfig(token_budget=37)),
    ],
    ids=["chunked", "three-at-a-time", "little-memory"],
)
def test_tokens_do_not_hang_on_the_schedule(kv_bytes: int, config: EngineConfig) -> None:
    reports: list[StepReport] = []
    engine = PagedEngine(config, reports.append, kv_bytes)
    engine.add("m", model())
    assert served(engine, requests()) == together()
    if kv_bytes < 1 << 23:
        assert reports[-1].preemptions > 0


def test_a_sample_is_the_same_alone() -> None:
    for request, samples in zip(requests(), together(), strict=True):
        for index, sample in enumerate(samples):
            engine = PagedEngine()
            engine.add("m", model())
            alone = GenerateRequest(
                request.prompt, request.keys[index : index + 1], request.sampling, 60, request.eos, None, request.mask
            )
            assert served(engine, (alone,)) == [(sample,)]


def test_the_log_probability_is_over_what_is_allowed() -> None:
    reference = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    for request, samples in list(zip(requests(), together(), strict=True))[:4]:
        assert request.mask is not None
        sample, mask = samples[0], request.mask()
        with torch.inference_mode():
            logits = reference(torch.tensor([request.prompt + sample.tokens])).logits[0]
        logprob = 0.0
        for at, token in enumerate(sample.tokens):
            bits = np.zeros((1, 24), dtype=np.int32)
            mask.fill([mask], bits)
            allowed = torch.from_numpy(np.unpackbits(bits.view(np.uint8), bitorder="little")[:768].astype(bool))
            row = logits[len(request.prompt) - 1 + at].masked_fill(~allowed, float("-inf"))
            logprob += row.log_softmax(-1)[token].item()
            mask.push(token)
        assert sample.logprob == pytest.approx(logprob, abs=1e-3)


def test_an_end_that_nothing_can_follow_is_a_match_and_another_is_eos() -> None:
    engine = PagedEngine()
    engine.add("m", model())
    for regex, finish in ((r"\d\d", "match"), (r"(\d|)", "eos")):
        masks = constrainer().masks("regex", regex)
        sampling = SamplingParams(1.0)
        (samples,) = served(
            engine, (GenerateRequest((5, 6), tuple(range(200)), sampling, 9, frozenset({4}), None, masks),)
        )
        assert finish in {sample.finish for sample in samples}
        assert all(len(sample.tokens) == 2 for sample in samples if regex == r"\d\d")


@pytest.mark.parametrize(
    ("kind", "source"), [("regex", "("), ("grammar", "start: other"), ("json_schema", '{"type": 3}')]
)
def test_a_constraint_that_does_not_compile_is_refused(kind: str, source: str) -> None:
    with pytest.raises(ConstraintError):
        constrainer().masks(kind, source)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"a": 1, "b": [1, 2]}', (True, True)),
        ('{"a":1,"b":[1,2]}', (False, True)),
        ('{"a": 1,\n "b": [ 1, 2 ]}', (False, True)),
        ('{"a" :1, "b": [1, 2]}', (False, True)),
    ],
)
def test_records_are_spaced_in_one_way_unless_the_schema_asks_for_any(text: str, taken: tuple[bool, bool]) -> None:
    fields = {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}}
    schema = {"type": "object", "properties": fields, "required": ["a", "b"], "additionalProperties": False}
    flexible = {**schema, "x-guidance": {"whitespace_flexible": True}}
    tokens = tokenizer().encode(text, add_special_tokens=False)
    masks = [constrainer().masks("json_schema", json.dumps(as_constraint(either)))() for either in (schema, flexible)]
    assert tuple(mask.admits(tokens) == len(tokens) for mask in masks) == taken


def test_a_mask_that_gives_up_fails_its_request_alone() -> None:
    class Lost:
        error = "it is lost"

        def push(self, token: int) -> bool:
            return False

        def fill(self, masks: Any, bits: Any) -> None:
            bits[:] = 0

    def lost() -> Mask:
        return Lost()

    engine = PagedEngine()
    engine.add("m", model())
    bad = engine.submit("m", GenerateRequest((5, 6), (0,), SamplingParams(1.0), 9, mask=lost))
    good = engine.submit("m", requests()[0])
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert good.result().samples == together()[0]
    with pytest.raises(EngineError, match="held to its constraint: it is lost"):
        bad.result()


def test_masks_are_the_same_side_by_side() -> None:
    masks = [constrainer().masks(kind, source)() for kind, source, _ in CONSTRAINTS for _ in range(80)]
    for mask, text in zip(masks, ["", "1", "{", '{"', "a", "(", "y"] * 200, strict=False):
        for token in tokenizer().encode(text, add_special_tokens=False):
            bits = np.zeros((1, 24), dtype=np.int32)
            mask.fill([mask], bits)
            if bits[0, token // 32] >> (token % 32) & 1:
                mask.push(token)
    many, single = np.zeros((2, len(masks), 24), dtype=np.int32)
    masks[0].fill(masks, many)
    for row, mask in enumerate(masks):
        mask.fill([mask], single[row : row + 1])
    assert many.size * 32 > 1 << 19
    assert (many == single).all()


def test_constraints_of_many_clients_do_not_pile_up() -> None:
    held = Constrainer(tokenizer(), len(tokenizer()), [], most_bytes=32 << 20)
    tracemalloc.start()
    sizes = []
    for number in range(3 * 300):
        held.masks("regex", f"a{number}" + "b" * 2000)
        if number % 300 == 299:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[2] < sizes[0] * 1.2


@pytest.mark.parametrize("kind", ["regex", "grammar", "json_schema"])
def test_what_is_no_text_is_no_constraint(kind: str) -> None:
    with pytest.raises(ConstraintError):
        Constrainer(tokenizer(), len(tokenizer()), []).masks(kind, '{"const": "\ud800')


def test_what_is_kept_is_bounded_by_its_size() -> None:
    """Clients of a server may each write schemas of their own, some of them large."""
    own = Constrainer(tokenizer(), 768, [4], most_bytes=4 << 20)
    small = json.dumps({"enum": ["first"]})
    own.masks("json_schema", small)
    for number in range(12):
        names = [f"{number}-{i}" for i in range(600)]
        own.masks("json_schema", json.dumps({"enum": names}))
        own.masks("json_schema", small)
        assert own.kept_bytes <= 4 << 20
    # One that is larger than all together is compiled, and not kept.
    huge = Constrainer(tokenizer(), 768, [4], most_bytes=1)
    assert huge.masks("json_schema", small)().admits([]) == 0 and huge.kept_bytes == 0


def test_threads_compile_side_by_side() -> None:
    own = Constrainer(tokenizer(), 768, [4], most_bytes=1 << 20)
    sources = [json.dumps({"enum": [f"{number}", "b"]}) for number in range(40)] * 3
    with ThreadPoolExecutor(8) as pool:
        masks = list(pool.map(lambda source: own.masks("json_schema", source)(), sources))
    assert all(mask.error is None for mask in masks)
    assert own.kept_bytes <= 1 << 20


def test_a_bounded_constraint_fails_where_a_step_would_take_long() -> None:
    """Copies of an ambiguous one go on with more and more ways to read what was written."""
    grammar = "start: a\na: a a | a a a | /[a-z ]/\n"
    constrainer = Constrainer(tokenizer(), 768, [4])
    bits = np.zeros((1, 24), dtype=np.int32)
    errors: dict[bool, str | None] = {}
    for bounded in (True, False):
        mask = constrainer.masks("grammar", grammar, bounded=bounded)()
        for token in tokenizer().encode("a b " * 8, add_special_tokens=False):
            mask.push(token)
            mask.fill([mask], bits)
        errors[bounded] = mask.error
    assert errors[False] is None
    assert errors[True] is not None and "Too many items" in errors[True]


def test_a_constraint_that_compiles_for_ever_is_refused() -> None:
    schema = json.dumps({"allOf": [{"type": "string", "pattern": f"(.*a.{{{n}}})"} for n in range(1, 25)]})
    with pytest.raises(ConstraintError, match="takes more than 1 s: combine fewer patterns"):
        Constrainer(tokenizer(), 768, [4]).masks("json_schema", schema, bounded=True)
