"""How large a constraint may be: refused before anything is compiled, in words that say what is too much."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")

from tests.support.serving.replies import error
from tests.support.serving.running_server import Running, running
from tests.support.serving.served_programs import QUESTION

NULLS = [{"type": "null"}]


@pytest.fixture(scope="module")
def bare() -> Any:
    with running(["best_of_n", "constrained_json"], expose=["llm"]) as server:
        yield server


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}}


def structured(**value: Any) -> dict[str, Any]:
    return {"structured_outputs": value}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (structured(choice=["a"] * 1001), "1,001 choices are too many: up to 1,000"),
        (structured(choice=["a" * 120_001]), "120,001 characters are too many"),
        (structured(regex="a" * 120_001), "`regex`: 120,001 characters"),
        (structured(grammar="start: /a/ // " + "a" * 120_001), "`grammar`"),
        (structured(json='{"enum": [' + "1, " * 1000 + "1]}"), "1,001 values of `enum`"),
        (
            schema({"anyOf": [{"enum": list(range(501))}, {"items": {"enum": list(range(500))}}]}),
            "1,001 values of `enum`",
        ),
        (schema({"properties": {f"p{i}": {} for i in range(2001)}}), "2,001 properties"),
        (schema({"anyOf": NULLS * 200, "items": {"oneOf": NULLS * 301}}), "501 alternatives"),
        (schema({"description": "a" * 120_000}), "the JSON Schema: 120,0"),
        ({"prompt": "pens " * 20_000}, "maximum context length is 1024 tokens, and a text of 100,000 characters"),
    ],
)
def test_what_is_too_large(bare: Running, fields: dict[str, Any], words: str) -> None:
    refused = error(bare.post("completions", **{"model": "llm", "prompt": "1 + 1 =", "max_tokens": 1, **fields}))
    assert words in refused["message"]


def test_a_property_may_have_any_name(bare: Running) -> None:
    """What a schema calls `enum` or `anyOf` where it names properties is none."""
    named = {"properties": {"enum": {"type": "string"}, "anyOf": {"type": "null"}, "properties": {"type": "null"}}}
    answer = bare.post(
        "completions", model="llm", prompt="1 + 1 =", max_tokens=4, **schema({"type": "object", **named})
    )
    assert answer.status_code == 200, answer.text


def test_more_samples_than_a_program_may_draw(bare: Running) -> None:
    refused = error(bare.chat("best_of_n", QUESTION, n=2, parameters={"n": 65_536}))
    assert "131,072 samples" in refused["message"] and refused["param"] == "n"


def test_a_text_that_no_model_of_a_program_reads(bare: Running) -> None:
    assert error(bare.chat("best_of_n", QUESTION * 2000))["code"] == "context_length_exceeded"


def test_a_schema_that_doubles_at_each_level(bare: Running) -> None:
    """Whether a program's record satisfies it is not compared for ever."""
    levels = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    doubled = {"$defs": {**levels, "d30": {"type": "null"}}, "$ref": "#/$defs/d0"}
    began = time.monotonic()
    assert "need not satisfy" in error(bare.chat("constrained_json", "Order: 3 pens.", **schema(doubled)))["message"]
    assert time.monotonic() - began < 10


def test_conversations_and_bodies_with_too_many_parts(bare: Running) -> None:
    turns = [{"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(4097)]
    assert "4,097 turns" in error(bare.post("chat/completions", model="llm", messages=turns))["message"]
    lists = error(bare.post("completions", model="llm", prompt=[[1]] * 200_000))
    assert "lists, objects and fields" in lists["message"]
    # In a text they are none.
    assert error(bare.post("completions", model="llm", prompt="[{" * 100_000))["code"] == "context_length_exceeded"
    ids = bare.client.post(f"{bare.root}/detokenize", json={"model": "llm", "tokens": [5] * 1025})
    assert "1,025 ids" in error(ids)["message"]
