"""Requests under constraints that force much, for the built-in model `zoo/counting`, and what they come to."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from qpdsl.executor.text.constraint import Constrainer
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
