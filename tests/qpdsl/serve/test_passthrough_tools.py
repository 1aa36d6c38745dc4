"""A bare model that is given tools: what it is shown, what it is held to, and how its calls are told from its texts."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.drawing import LogitProcessors
from qpdsl.executor.requests.request import GenerateRequest
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.model_location import locate
from qpdsl.serve.completion_request import CompletionRequest, Refusal
from qpdsl.serve.passthrough_model import PassthroughModel
from qpdsl.serve.served_model import CompletionChoice
from qpdsl.serve.tool_fields import AskedTools
from qpdsl.serve.written_calls import WrittenCalls
from tests.support.paths import ROOT
from tests.support.serving.replies import error
from tests.support.serving.running_server import Running, events, running

TEMPLATES = ROOT / "tests" / "executor" / "text" / "tool_templates"
NAMES = ("bare_object", "object_in_marks", "named", "tags", "special_tags", "python_call")
# What begins a call, and how much likelier its tokens are made, so that the model calls now and then.
START = {
    "bare_object": ("{", 9.0),
    "named": ("<|pad|>", 12.0),
    "special_tags": ("<|pad|>", 15.0),
    "python_call": ("{", -8.0),
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "unit": {"enum": ["pens", "cups"]}},
    "required": ["a"],
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds <|end|>.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "readd", "strict": True}},
]
ASKED = {"role": "user", "content": "Bo has 2 pens."}
FORCED = {"type": "function", "function": {"name": "add"}}
CALLS = {
    "object_in_marks": '<tool_call>\n{"name": "readd", "arguments": {}}\n</tool_call>',
    "bare_object": '{"name": "readd", "parameters": {}}',
    "named": "<|pad|>readd[ARGS]{}",
    "tags": "<function=readd></function>",
    "special_tags": "<|pad|>readd.",
    "python_call": '{"name": "readd", "arguments": {}}',
}


@cache
def loaded() -> PagedTextModel:
    return load("zoo/counting", locate("zoo/counting"), "cpu", None)


@cache
def model(template: str) -> PagedTextModel:
    """The built-in model with another chat template."""
    tokenizer = copy.deepcopy(loaded().tokenizer)
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text("utf-8")
    return replace(loaded(), tokenizer=tokenizer)


class BiasedEngine(PagedEngine):
    """Makes some ids likelier than they are."""

    bias: tuple[tuple[int, float], ...] = ()

    def submit(self, model: str, request: Any) -> Ticket:
        if self.bias and isinstance(request, GenerateRequest):
            sampling = replace(request.sampling, processors=LogitProcessors(bias=self.bias))
            request = replace(request, sampling=sampling)
        return super().submit(model, request)


async def asked(template: str, body: Mapping[str, Any], *, streams: bool, biased: bool) -> list[Any]:
    own = BiasedEngine(kv_bytes="16MiB")
    own.add("zoo/counting", model(template).paged)
    if biased:
        start, more = START[template]
        added = map(model(template).marked_detokenizer.bytes_of, range(model(template).width))
        own.bias = tuple((id, more) for id, data in enumerate(added) if data.startswith(start.encode()))
    driver = asyncio.create_task(own.drive())
    try:
        body = {"messages": [ASKED], "tools": TOOLS, **body}
        work = PassthroughModel("llm", model(template), own, "fp").read(CompletionRequest("chat", body, "id"))
        return [step async for step in work.stream()] if streams else [await work.answer()]
    finally:
        driver.cancel()


def choices(template: str, biased: bool = False, **body: Any) -> tuple[CompletionChoice, ...]:
    """The answers to a body, which are the same in a stream, whose pieces are their texts."""
    (whole,) = asyncio.run(asked(template, body, streams=False, biased=biased))
    *pieces, last = asyncio.run(asked(template, body, streams=True, biased=biased))
    assert last == whole
    for index, choice in enumerate(whole.choices):
        assert "".join(piece.text for piece in pieces if piece.index == index) == choice.text
    found: tuple[CompletionChoice, ...] = whole.choices
    return found


def prompt(template: str, *turns: Mapping[str, Any], **body: Any) -> str:
    """The text of the prompt that a conversation becomes."""
    bare = PassthroughModel("llm", model(template), PagedEngine(), "fp")
    tokens = bare.tokenize({"messages": list(turns), **body})["tokens"]
    return str(model(template).tokenizer.decode(tokens))


@pytest.mark.parametrize("template", NAMES)
def test_a_call_that_has_to_come_is_one_of_the_tools_that_may_be_called(template: str) -> None:
    for choice in choices(template, tool_choice=FORCED, n=2, seed=7, temperature=1.2, max_tokens=200):
        (call,) = choice.calls
        assert choice.finish_reason == "tool_calls" and choice.text == ""
        assert call["function"]["name"] == "add" and call["type"] == "function"
        given = json.loads(call["function"]["arguments"])
        assert given["a"] in range(100) and given.get("unit", "pens") in ("pens", "cups")
        assert given.keys() <= {"a", "unit"}
    names = [
        choice.calls[0]["function"]["name"]
        for choice in choices(template, tool_choice="required", n=8, seed=1, temperature=2.0, max_tokens=200)
        if choice.calls
    ]
    assert {*names} <= {"add", "readd"} and len(names) > 4


@pytest.mark.parametrize("template", START)
def test_a_model_calls_or_answers_in_text(template: str) -> None:
    """A text comes as it is, and the call that it ends in is no part of it."""
    found = choices(template, biased=True, n=12, seed=3, temperature=1.5, max_tokens=60)
    called = [choice for choice in found if choice.calls]
    assert 0 < len(called) < 12 and len({choice.calls[0]["id"] for choice in called}) == len(called)
    assert all(choice.finish_reason == "tool_calls" for choice in called)
    assert all("[ARGS]" not in choice.text and "<|" not in choice.text for choice in called)
    said = [choice for choice in found if choice.finish_reason == "stop"]
    assert all(choice.text and not choice.calls for choice in said)


@pytest.mark.parametrize("template", NAMES)
@pytest.mark.parametrize("lead", ["", "I add. <b {x} re\n\n", " ü"])
def test_no_part_of_a_call_is_shown_as_text_while_it_grows(template: str, lead: str) -> None:
    own = model(template)
    lead = lead if own.tool_format.mark else ""
    calls = WrittenCalls(own, AskedTools.of(CompletionRequest("chat", {"tools": TOOLS}, "id")))
    ids = tuple(own.tokenizer.encode(lead + CALLS[template], add_special_tokens=False))
    text = own.detokenizer.text(ids)
    before, (call,) = calls.read(text, (*ids, *own.eos), "seed") or ("", ())
    assert before == lead.rstrip() and call["function"] == {"name": "readd", "arguments": "{}"}
    special = next((place for place, id in enumerate(ids) if calls.begins_with(id)), len(ids))
    parts = [ids[:end] for end in range(1, special + 1)]
    # A letter that is only begun is no text yet.
    shown = [own.detokenizer.text(part).removesuffix(own.detokenizer.tail(part)) for part in parts]
    sure = [part[: calls.sure(part)] for part in shown]
    assert all(before.startswith(part) for part in sure) and sure == sorted(sure, key=len)
    # Nothing but what may begin a call is held back.
    assert not lead or any(sure)


@pytest.mark.parametrize("template", ["object_in_marks", "named"])
def test_a_conversation_with_tools_is_what_the_template_makes_of_it(template: str) -> None:
    tools = [TOOLS[0] | {"function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}]
    function = {"name": "add", "arguments": {"a": 7, "unit": "pens"}}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    sent = {**called, "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": dict(function)}]}
    sent["tool_calls"][0]["function"]["arguments"] = json.dumps(function["arguments"])
    came = {"role": "tool", "tool_call_id": "c1", "content": "9"}
    whole = model(template).tokenizer.apply_chat_template(
        [ASKED, called, came], tools=tools, add_generation_prompt=True, tokenize=False
    )
    assert prompt(template, ASKED, sent, came, tools=tools) == whole
    alone = model(template).tokenizer.apply_chat_template([ASKED], add_generation_prompt=True, tokenize=False)
    assert prompt(template, ASKED, tools=tools, tool_choice="none") == prompt(template, ASKED) == alone


def test_tools_and_calls_are_text_for_a_template_that_knows_none() -> None:
    called = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": '{"a": 7}'}}]}
    came = {"role": "tool", "tool_call_id": "c1", "content": "9"}
    shown = prompt("python_call", ASKED, called, came, tools=TOOLS)
    assert shown.startswith("<|system|>You can call these tools")
    assert '<|assistant|>{"name": "add", "arguments": {"a": 7}}<|end|><|user|>9<|end|><|assistant|>' in shown
    # Without tools the calls of a conversation stay.
    assert shown.endswith(prompt("python_call", ASKED, called, came))


def test_a_call_that_is_cut_off_is_text() -> None:
    (choice,) = choices("bare_object", tool_choice=FORCED, seed=1, max_tokens=6)
    assert choice.finish_reason == "length" and not choice.calls and choice.text.startswith('{"name": "add')
    (choice,) = choices("bare_object", tool_choice=FORCED, seed=1, max_tokens=60, stop='"parameters"')
    assert choice.finish_reason == "stop" and not choice.calls and choice.text == '{"name": "add", '


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    "text", [' {"a": 1}', " [1]", 'So: {"name": "add", "parameters": {}}', ' {"name": "f", "parameters": {}}', " [[]]"]
)
def test_a_text_that_looks_like_a_call_is_text(text: str, parallel: bool) -> None:
    for template in ("bare_object", "python_call"):
        asked = CompletionRequest("chat", {"tools": TOOLS, "parallel_tool_calls": parallel}, "id")
        own = model(template)
        assert WrittenCalls(own, AskedTools.of(asked)).read(text, tuple(own.encode(text)), "seed") is None


def test_a_free_object_stays_free_and_one_with_fields_has_no_others() -> None:
    free = {"type": "object", "additionalProperties": {"type": "integer"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in (free, None)]
    tools[1]["function"]["name"] = "g"  # type: ignore[index]
    own = model("bare_object")
    calls = WrittenCalls(own, AskedTools.of(CompletionRequest("chat", {"tools": tools}, "id")))
    mask = own.constrainer.masks(calls.constraint.kind, calls.constraint.source)

    def admits(text: str) -> bool:
        ids = own.encode(text)
        return mask().admits([*ids, *own.eos]) == len(ids) + 1

    assert admits('{"name": "f", "parameters": {"x": 7}}') and admits('{"name": "g", "parameters": {}}')
    assert not admits('{"name": "f", "parameters": {"x": "7"}}')
    assert not admits('{"name": "g", "parameters": {"x": 7}}')


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": {"name": "f"}}, "tools", "a list of functions"),
        ({"tools": [{"type": "web_search"}]}, "tools", "`tools[0]` is a tool of the type `web_search`"),
        ({"tools": function(name="")}, "tools", "has a name of up to 64 letters"),
        ({"tools": function(name="<|end|>")}, "tools", "has a name of up to 64 letters"),
        ({"tools": function() * 2}, "tools", "two functions `f`"),
        ({"tools": function() * 129}, "tools", "129 functions, and up to 128"),
        ({"tools": function(parmeters={})}, "tools", "did you mean `parameters`?"),
        ({"tools": function(description=7)}, "tools", "description"),
        ({"tools": function(parameters={"type": "array"})}, "tools", "of the type `object`"),
        ({"tools": function(parameters={"type": "object", "nullable": True})}, "tools", "`nullable` is not supported"),
        (
            {"tools": function(parameters={"type": "object", "properties": {"a": {"$ref": "#/no"}}})},
            "tools",
            "at `/properties/a`",
        ),
        (
            {"tools": function(parameters={"type": "object", "properties": {"<|end|>": {}}})},
            "tools",
            "no name in a tool",
        ),
        ({"tools": function(parameters={"type": "object", "enum": list(range(1001))})}, "tools", "1,001 values"),
        ({"tools": function(description="x" * 120_000)}, "tools", "120,0"),
        (
            {"tools": function(parameters={"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]})},
            "tools",
            "cannot be held to calls of these tools",
        ),
        ({"tools": function(), "tool_choice": "any"}, "tool_choice", "`auto`"),
        ({"tools": function(), "tool_choice": {"type": "function"}}, "tool_choice", "`tool_choice` is one of"),
        ({"tools": function(), "tool_choice": FORCED}, "tool_choice", "`tools` has no function `add`"),
        ({"tool_choice": "required"}, "tool_choice", "goes with `tools`"),
        ({"tools": function(), "parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        ({"tools": function(), "response_format": {"type": "json_object"}}, "tools", "`tool_choice` `none`"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported here"),
    ],
)
def test_what_is_wrong_with_tools_is_said(fields: dict[str, Any], param: str, words: str) -> None:
    bare = PassthroughModel("llm", model("bare_object"), PagedEngine(), "fp")
    with pytest.raises(Refusal) as caught:
        bare.read(CompletionRequest("chat", {"messages": [ASKED], **fields}, "id"))
    assert words in caught.value.message and caught.value.param == param


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([], expose=["llm=zoo/counting", "thinker=zoo/counting-thinker"]) as own:
        yield own


@pytest.mark.parametrize("name", ["llm", "thinker"])
def test_a_client_reads_a_call_at_the_end_of_a_stream(server: Running, name: str) -> None:
    parallel = name == "llm"
    given = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel, "temperature": 0, "seed": 1}
    given |= {"thinking_token_budget": 8} if name == "thinker" else {}
    whole = server.chat(name, "Bo has 2 pens.", **given).json()["choices"][0]
    message = whole["message"]
    assert whole["finish_reason"] == "tool_calls" and message["content"] is None
    *told, done = events(server.chat(name, "Bo has 2 pens.", stream=True, **given))
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in told]
    assert done == "[DONE]" and deltas[0]["role"] == "assistant" and not any(delta.get("content") for delta in deltas)
    assert "".join(delta.get("reasoning", "") for delta in deltas) == message.get("reasoning", "")
    calls = message["tool_calls"]
    assert deltas[-2] == {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]} and deltas[-1] == {}
    assert (len(calls) > 1) == parallel and len({call["id"] for call in calls}) == len(calls)
    told_of = server.chat(name, "Bo has 2 pens.", logprobs=True, **given).json()["choices"][0]["logprobs"]
    *told, _ = events(server.chat(name, "Bo has 2 pens.", logprobs=True, stream=True, **given))
    parts = [json.loads(chunk)["choices"][0]["logprobs"] for chunk in told]
    assert [part for part in parts if part] == [told_of] and told_of["content"]
    came = [{"role": "tool", "tool_call_id": call["id"], "content": "5"} for call in calls]
    turns, short = [ASKED, message, *came], {"thinking_token_budget": 0, "max_tokens": 4}
    again = server.post("chat/completions", model=name, messages=turns, tools=TOOLS, tool_choice="none", **short)
    assert again.status_code == 200 and again.json()["choices"][0]["message"]["content"]
    text = server.post("completions", model=name, prompt="1 + 1", tools=TOOLS)
    assert error(text)["param"] == "tools"
