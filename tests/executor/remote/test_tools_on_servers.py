"""Models on servers that are given tools: what is asked, and that a program's calls are made as with a local model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any, Literal

import pytest

import qpdsl as qp
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.dialects.dialect import Message, Messages, SampleRequest
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.remote_model import CALL as CALL_TOKEN
from qpdsl.executor.remote.remote_model import EOS, WIDTH, text_of, text_tokenizer
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.remote.written_sample import WrittenSample, answer_of
from qpdsl.executor.requests.request import GenerateRequest, SampleConstraint, SamplingParams
from qpdsl.executor.text.constraint import Constrainer
from qpdsl.executor.text.tool_format import tool_format
from qpdsl.grammar.model_id import DIALECTS, DialectName
from tests.support.remote.stub_server import stub
from tests.support.serving.running_server import Running, running

PROGRAM = """
model llm = "openai:URL#llm"
program p(problem: text) -> text {
  chat user=problem
  generate llm n=3 temperature=1.5 max_tokens=900 as call(look, note, MORE) into calls
  where calls != none
  tool calls into seen
  chat tool=seen
  generate llm max_tokens=4
  return text
}
"""
TOOL = {
    "name": "add",
    "description": "Adds.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
LOOSE = {"name": "sub", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '{"name": "add", "arguments": {"a": 7}}'


@qp.tool
def look(word: Literal["a", "b"]) -> str:
    return f"seen {word}"


@qp.tool
def note(number: int) -> str:
    return f"noted {number}"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([], expose=["llm=zoo/counting"]) as own:
        yield own


def result(server: Running, called: str) -> qp.Result[Any]:
    text = PROGRAM.replace("URL", server.url).replace("look, note, MORE", called)
    return qp.parse(text, functions=[look, note]).run("Bo has 2 pens.", seed=4)


def gives(call: Any) -> str:
    return {"look": look, "note": note}[call["name"]](**call["arguments"])


@pytest.mark.parametrize("called", ["look, note", "look, note, text"])
def test_a_program_calls_tools_by_a_model_on_a_server(server: Running, called: str) -> None:
    rows = result(server, called).rows
    assert rows and all(row["seen"] == gives(row["calls"]) for row in rows)


def test_calls_of_one_message_come_back_from_a_server(server: Running) -> None:
    rows = result(server, "look, calls=2").rows
    assert {len(row["calls"]) for row in rows} <= {1, 2} and any(len(row["calls"]) == 2 for row in rows)
    assert all(list(row["seen"]) == [gives(call) for call in row["calls"]] for row in rows)


def test_a_server_takes_tools_in_chats_alone(server: Running) -> None:
    text = PROGRAM.replace("URL", server.url).replace("look, note, MORE", "look").replace("openai:", "vllm:")
    text = text.replace("chat user=problem", 'prompt "{problem}"').replace("chat tool=seen", 'prompt "{seen}"')
    with pytest.raises(ModelError, match="takes tools in chats alone"):
        qp.parse(text, functions=[look]).run("Bo has 2 pens.")


def test_a_server_that_was_not_seen_to_call_tools_would_have_to_hold_to_their_schemas() -> None:
    with stub("openai") as server, pytest.raises(ModelError, match="union"):
        qp.parse(
            PROGRAM.replace("URL", server.url).replace("#llm", "#stub").replace(", MORE", ""), functions=[look, note]
        ).run("Bo has 2 pens.")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tools_and_turns_about_them_have_fields_of_their_own(dialect: DialectName) -> None:
    turns = (
        Message("user", "7 and 8?"),
        Message("assistant", "", "", (CALL, CALL.replace("7", "8"))),
        Message("tool", "9"),
        Message("tool", "10"),
    )
    shown = json.dumps([{"type": "function", "function": TOOL}])
    able = ServerCapabilities(chat=True, tools=True)
    asked = SampleRequest("name", Messages(turns, tools=shown), SamplingParams(0.7), 9, 5, able)
    constraint = SampleConstraint("grammar", "start: CALL", json.dumps([TOOL, LOOSE]), most_calls=2)
    body = named(dialect).write(replace(asked, constraint=constraint)).body
    _, called, one, two = body["messages"]
    assert [json.loads(call["function"]["arguments"]) for call in called["tool_calls"]] == [{"a": 7}, {"a": 8}]
    assert called["content"] is None and one["content"] == "9"
    assert [one["tool_call_id"], two["tool_call_id"]] == [call["id"] for call in called["tool_calls"]]
    assert body["tool_choice"] == "required" and body["parallel_tool_calls"] is True
    # OpenAI's API holds to a schema whose objects have all of their fields.
    assert [tool["function"].get("strict") for tool in body["tools"]] == [True, None]
    assert not {"response_format", "structured_outputs", "grammar", "ebnf"} & body.keys()
    told = named(dialect).write(asked).body
    assert told["tool_choice"] == "none" and told["tools"] == json.loads(shown)


def test_an_answer_with_calls_is_kept_with_them() -> None:
    function = {"name": "add", "arguments": '{"a": 7}'}
    message = {"content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}
    answer = named("openai").read({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    assert (answer.text, answer.calls, answer.finish) == ("", (CALL,), "stop")
    kept = json.loads(json.dumps(astuple(answer)))
    assert answer_of(kept) == answer
    # Those that were kept before calls were known.
    assert answer_of(["4", None, [], [], "stop", None, 3, 0, 1, "", None]) is not None


def test_a_server_spaces_a_call_and_orders_its_fields_as_its_model_likes() -> None:
    """And the call is what a model here would have written."""
    tokenizer = text_tokenizer()
    inner = {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "boolean"}}}
    fields = {"a": {"type": "integer"}, "b": {"type": "array", "items": {**inner, "required": ["x", "y"]}}}
    tools = json.dumps([{**TOOL, "parameters": {"type": "object", "properties": fields, "required": ["a", "b"]}}])
    grammar = tool_format(tokenizer).grammar(tools, tokenizer)
    mask = Constrainer(tokenizer, WIDTH, [EOS]).masks("grammar", grammar)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "?"}], add_generation_prompt=True)["input_ids"]
    constraint = SampleConstraint("grammar", grammar, tools)
    request = GenerateRequest(tuple(prompt), (1,), SamplingParams(0.7), 99, mask=mask, constraint=constraint)
    sample = WrittenSample(request, 0, TextModel("a server", tokenizer, frozenset({EOS}), 1024, WIDTH), told=False)
    function = {"name": "add", "arguments": '{"b":[{"y":true,"x":"é"}],\n"a":7}'}
    message = {"content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}
    sample.push(named("openai").read({"choices": [{"message": message, "finish_reason": "tool_calls"}]}))
    written = sample.sample()
    assert written is not None and written.tokens[0] == CALL_TOKEN
    assert text_of(written.tokens[1:]) == '{"name": "add", "arguments": {"a": 7, "b": [{"x": "é", "y": true}]}}'
