"""How each kind of server is asked, and how its answers are read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from qpdsl.executor.remote.dialects.dialect import CompletionChunk, Message, Messages, SampleRequest, joined
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.server.failures import Refused, Unreachable
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.drawing import LogitProcessors
from qpdsl.executor.requests.request import SampleConstraint, SamplingParams
from qpdsl.grammar.model_id import DIALECTS, DialectName

ALL = ServerCapabilities(endpoint="ids", chat=True, prefill=True, logprobs=True, token_ids=True)
ASKING = SampleRequest("name", (1, 2), SamplingParams(0.7), 9, 5, ALL)
CHAT = replace(ASKING, prompt=Messages((Message("user", "2 + 2?"),), Message("assistant", "It is")))
SCHEMA = '{"type": "object"}'


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_sample_with_a_seed(dialect: DialectName) -> None:
    for request in (ASKING, CHAT):
        body = named(dialect).write(request).body
        assert (body["model"], body["temperature"], body["seed"], body["top_p"]) == ("name", 0.7, 5, 1.0)
        assert body["max_tokens"] == 9 and "n" not in body and "stream" not in body
        assert named(dialect).streamed(body)["stream"] is True
    greedy = named(dialect).write(replace(ASKING, sampling=SamplingParams(1e-9)))
    assert greedy.body["temperature"] == 0.0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_paths_and_prompts(dialect: DialectName) -> None:
    ids, text, chat = (named(dialect).write(request) for request in (ASKING, replace(ASKING, prompt="2 +"), CHAT))
    assert (ids.path, ids.body["prompt"]) == ("completions", [1, 2])
    assert (text.path, text.body["prompt"]) == ("completions", "2 +")
    assert chat.path == "chat/completions"
    assert chat.body["messages"] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "It is"},
    ]
    begun = {"vllm": ["add_generation_prompt", "continue_final_message"], "sglang": ["continue_final_message"]}
    assert [name for name in chat.body if name.endswith(("_prompt", "_message"))] == begun.get(dialect, [])
    other = replace(CHAT, capabilities=replace(ALL, max_tokens_name="max_completion_tokens"))
    assert named(dialect).write(other).body["max_completion_tokens"] == 9


def test_openai_is_sent_nothing_that_it_does_not_know() -> None:
    request = replace(CHAT, stops=("x",), constraint=SampleConstraint("json_schema", SCHEMA))
    assert set(named("openai").write(request).body) == {
        "model", "messages", "temperature", "top_p", "seed", "max_tokens", "logprobs", "stop", "response_format"
    }  # fmt: skip
    for wrong in (
        replace(CHAT, sampling=SamplingParams(1.0, top_k=4)),
        replace(CHAT, constraint=SampleConstraint("regex", "a")),
    ):
        with pytest.raises(ValueError, match="this dialect has no"):
            named("openai").write(wrong)


@pytest.mark.parametrize(
    ("dialect", "neutral"),
    [
        ("vllm", {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}),
        ("sglang", {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}),
        ("llamacpp", {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}),
    ],
)
def test_what_is_neutral_is_said(dialect: DialectName, neutral: dict[str, float]) -> None:
    assert named(dialect).write(ASKING).body.items() >= neutral.items()
    filtered = replace(ASKING, sampling=SamplingParams(1.0, top_k=4, top_p=0.5, min_p=0.1))
    assert named(dialect).write(filtered).body.items() >= {"top_k": 4, "top_p": 0.5, "min_p": 0.1}.items()


@pytest.mark.parametrize(
    ("dialect", "given"),
    [
        ("vllm", {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {"7": 2.0}, "min_tokens": 4}),
        ("sglang", {"presence_penalty": 0.5, "logit_bias": {"7": 2.0}, "min_tokens": 4}),
        ("llamacpp", {"repeat_penalty": 1.2, "repeat_last_n": -1, "logit_bias": {"7": 2.0}}),
        ("openai", {"presence_penalty": 0.5}),
    ],
)
def test_penalties_are_said(dialect: DialectName, given: dict[str, Any]) -> None:
    processors = LogitProcessors(
        repetition=1.2,
        presence=given.get("presence_penalty", 0.0),
        bias=((7, 2.0),),
        min_tokens=given.get("min_tokens", 0),
    )
    sampling = SamplingParams(0.0, processors=processors)
    assert named(dialect).write(replace(ASKING, sampling=sampling)).body.items() >= given.items()


@pytest.mark.parametrize(
    ("dialect", "kind", "source", "fields"),
    [
        ("vllm", "json_schema", SCHEMA, {"structured_outputs": {"json": {"type": "object"}}}),
        ("vllm", "regex", "a+", {"structured_outputs": {"regex": "a+"}}),
        ("vllm", "grammar", "start: /a/", {"structured_outputs": {"grammar": "start: /a/"}}),
        ("vllm", "choice", '["a", "b"]', {"structured_outputs": {"choice": ["a", "b"]}}),
        ("sglang", "json_schema", SCHEMA, {"json_schema": SCHEMA}),
        ("sglang", "regex", "a+", {"regex": "a+"}),
        ("sglang", "choice", '["a.b", "c d"]', {"regex": "(a\\.b|c d)"}),
        ("llamacpp", "json_schema", SCHEMA, {"json_schema": {"type": "object"}}),
        ("llamacpp", "choice", '["a\\"b", "c\\nd"]', {"grammar": 'root ::= "a\\"b" | "c\\nd"'}),
    ],
)
def test_constraints(dialect: DialectName, kind: Any, source: str, fields: dict[str, Any]) -> None:
    body = named(dialect).write(replace(ASKING, constraint=SampleConstraint(kind, source))).body
    assert body.items() >= fields.items()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_constraint_that_a_dialect_names_it_can_write(dialect: DialectName) -> None:
    sources = {"json_schema": SCHEMA, "regex": "a", "grammar": "start: /a/", "choice": '["a"]'}
    for kind, source in sources.items():
        for request in (ASKING, CHAT):
            held = replace(request, constraint=SampleConstraint(kind, source))  # type: ignore[arg-type]
            if kind in named(dialect).constraints:
                assert named(dialect).write(held).body != named(dialect).write(request).body
            else:
                with pytest.raises(ValueError, match="has no field for a"):
                    named(dialect).write(held)


def test_answers_of_vllm() -> None:
    reply = {
        "choices": [
            {
                "text": " 4;",
                "token_ids": [7, 8],
                "logprobs": {"tokens": [" 4", ";"], "token_logprobs": [-0.1, -0.2]},
                "finish_reason": "stop",
                "stop_reason": ";",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    assert named("vllm").read(reply) == CompletionChunk(" 4;", (7, 8), (-0.1, -0.2), (2, 1), "stop", ";", 5, 4, 2)
    assert named("vllm").read({"choices": [{"text": "", "finish_reason": "stop", "stop_reason": 3}]}).named is None


def test_answers_of_others() -> None:
    sglang = {"choices": [{"text": "a;", "token_ids": [7], "finish_reason": "stop", "matched_stop": ";"}]}
    assert named("sglang").read(sglang) == CompletionChunk("a;", (7,), finish="stop", named=";")
    content = [{"id": 3, "token": "a", "logprob": -0.5, "bytes": [97]}]
    llama = {
        "choices": [{"text": "a", "logprobs": {"content": content}, "finish_reason": "length"}],
        "timings": {"cache_n": 6},
    }
    assert named("llamacpp").read(llama) == CompletionChunk("a", (3,), (-0.5,), (1,), "length", cached_tokens=6)
    thinking = {"choices": [{"message": {"content": None, "reasoning_content": "hm"}, "finish_reason": "length"}]}
    assert named("openai").read(thinking) == CompletionChunk(finish="length", thought="hm")


def test_a_stream_is_its_pieces() -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "It"}, "token_ids": [1], "finish_reason": None}]},
        {"choices": [{"delta": {"content": " is"}, "token_ids": [2, 3], "finish_reason": None}]},
        {"choices": [{"delta": {}, "token_ids": [9], "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ]
    answer = joined(named("vllm").read(json.loads(json.dumps(event))) for event in events)
    assert (answer.text, answer.ids, answer.finish, answer.sampled_tokens) == ("It is", (1, 2, 3, 9), "stop", 4)
    without = joined(named("openai").read(event) for event in events)
    assert (without.text, without.ids) == ("It is", None)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ([], Refused),
        ({}, Refused),
        ({"choices": [{"message": 3}]}, Refused),
        ({"choices": [{"text": "", "finish_reason": "content_filter"}]}, Refused),
        ({"choices": [{"text": "", "finish_reason": "abort"}]}, Unreachable),
        ({"error": {"message": "no memory", "code": 500}}, Unreachable),
        ({"error": {"message": "bad", "code": 400}}, Refused),
        ({"error": "bad"}, Unreachable),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_no_answer(dialect: DialectName, reply: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        named(dialect).read(reply)
