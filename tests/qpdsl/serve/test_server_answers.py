"""A real server on a free port, asked by a plain HTTP client: its answers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")
pytest.importorskip("prometheus_client", reason="serving needs qpdsl[serve]")

from tests.support.serving.replies import content, error
from tests.support.serving.running_server import Running, events, running
from tests.support.serving.served_programs import NOTE, QUESTION


def test_models(server: Running) -> None:
    listed = server.client.get(f"{server.url}/models").json()
    names = [model["id"] for model in listed["data"]]
    assert listed["object"] == "list"
    assert names[:5] == ["beam_search", "greedy", "constrained_json", "order", "meeting"]
    one = server.client.get(f"{server.url}/models/beam_search").json()
    assert one["object"] == "model" and one["owned_by"] == "qpdsl"
    # A parameter that the server sets is none of the clients'.
    assert one["parameters"] == {
        "problem": "text",
        "width": "int",
        "expand": "int",
        "system": "text?",
        "temperature": "float",
        "max_tokens": "int",
    }
    assert error(server.client.get(f"{server.url}/models/beam_serch"), 404)["message"].endswith("`beam_search`?")
    assert error(server.client.get(f"{server.root}/v1/embeddings"), 404)["code"] == "not_found"
    assert error(server.client.get(f"{server.url}/chat/completions"), 405)


def test_chat(server: Running) -> None:
    answer = server.chat("beam_search", QUESTION, seed=3)
    assert content(answer) == "12"
    body = answer.json()
    assert body["object"] == "chat.completion" and body["model"] == "beam_search" and body["seed"] == 3
    assert body["choices"][0]["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    details = usage["completion_tokens_details"]
    assert 0 < details["answer_tokens"] < usage["completion_tokens"]
    assert details["reasoning_tokens"] == usage["completion_tokens"] - details["answer_tokens"]


def test_text_completion(server: Running) -> None:
    body = server.post("completions", model="greedy", prompt=QUESTION).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "12", "logprobs": None, "finish_reason": "stop"}]
    assert error(server.post("completions", model="greedy", prompt=[1, 2]))["param"] == "prompt"
    assert error(server.post("completions", model="greedy", messages=[]))["param"] == "messages"


def test_the_same_seed_gives_the_same_answer_and_none_another(server: Running) -> None:
    def said(**more: Any) -> str:
        return content(server.chat("talk", QUESTION, **more))

    assert said(seed=5) == said(seed=5)
    assert len({said(temperature=2) for _ in range(6)}) > 1
    assert said(temperature=0) == said(temperature=0)
    drawn = server.chat("talk", QUESTION)
    assert content(drawn) == said(seed=drawn.json()["seed"])


def test_n_is_independent_runs(server: Running) -> None:
    body = server.chat("say_it", QUESTION, n=3, seed=7).json()
    alone = [server.chat("say_it", QUESTION, seed=7 + index).json() for index in range(3)]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"] for choice in body["choices"]] == [one["choices"][0]["message"] for one in alone]
    sampled = [one["usage"]["completion_tokens"] for one in alone]
    assert body["usage"]["completion_tokens"] == sum(sampled)


def test_log_probabilities_of_the_answer(server: Running) -> None:
    answer = server.chat("cut_short", QUESTION, logprobs=True).json()["choices"][0]
    tokens = answer["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == answer["message"]["content"]
    assert all(token["logprob"] <= 0 and token["top_logprobs"] == [] for token in tokens)
    # The bare model, greedy as the program is, draws the same tokens.
    with running([], expose=["llm=zoo/counting"]) as bare:
        same = bare.chat("llm", QUESTION, temperature=0, max_tokens=4, logprobs=True).json()["choices"][0]
    assert [token["token"] for token in same["logprobs"]["content"]] == [token["token"] for token in tokens]
    told = [token["logprob"] for token in same["logprobs"]["content"]]
    assert told == pytest.approx([token["logprob"] for token in tokens], abs=1e-5)
    short = server.chat("cut_short", QUESTION, logprobs=True, max_tokens=2).json()["choices"][0]
    assert short["logprobs"]["content"] == tokens[:2] and short["finish_reason"] == "length"
    (chunk,) = [
        choice
        for event in events(server.chat("cut_short", QUESTION, logprobs=True, stream=True))[:-1]
        if (choice := json.loads(event)["choices"][0])["logprobs"]
    ]
    assert chunk["logprobs"] == answer["logprobs"]
    text = server.post("completions", model="cut_short", prompt=QUESTION, logprobs=0).json()["choices"][0]
    assert text["logprobs"]["token_logprobs"] == [token["logprob"] for token in tokens]


def test_the_programs_own_bound_is_told(server: Running) -> None:
    assert server.chat("cut_short", QUESTION).json()["choices"][0]["finish_reason"] == "length"


def test_records(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {
            "customer": {"type": "string"},
            "express": {"type": "boolean"},
            "items": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["customer", "express"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "order", "strict": True, "schema": schema}}
    plain = content(server.chat("order", NOTE))
    assert json.loads(plain)["customer"] == "Ann"
    assert content(server.chat("order", NOTE, response_format={"type": "json_object"})) == plain
    assert error(server.chat("order", NOTE, response_format=form))["param"] == "response_format"
    del schema["properties"]["items"]  # type: ignore[attr-defined]
    assert content(server.chat("order", NOTE, response_format=form)) == plain
    streamed = server.chat("order", NOTE, response_format=form, stream=True)
    pieces = [json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in events(streamed)[:-1]]
    assert "".join(pieces) == plain and len(pieces) > 5
    refused = error(server.chat("beam_search", QUESTION, response_format={"type": "json_object"}))
    assert "returns no record" in refused["message"]


@pytest.mark.parametrize("program", ["named_record", "voted_record", "later_record"])
def test_a_record_under_a_name_is_one(server: Running, program: str) -> None:
    plain = content(server.chat(program, QUESTION, seed=1))
    assert json.loads(plain).keys() == {"number"}
    assert content(server.chat(program, QUESTION, seed=1, response_format={"type": "json_object"})) == plain
    assert error(server.chat(program, QUESTION, stop="}"))["param"] == "stop"


def test_a_strict_schema_gets_null_for_what_a_program_leaves_out(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "email": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["name", "age", "tags", "email"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    note = "Ann is 31 years old."
    given = json.loads(content(server.chat("constrained_json", note)))
    held = json.loads(content(server.chat("constrained_json", note, response_format=form)))
    assert held == {"email": None, **given} and held.keys() == schema["properties"].keys()  # type: ignore[attr-defined]


def test_a_conversation_goes_to_messages(server: Running) -> None:
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi", "tool_calls": None, "refusal": None},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    ]
    for model in ("talk", "reply"):
        assert content(server.post("chat/completions", model=model, messages=turns, seed=1))
    refused = error(server.post("chat/completions", model="beam_search", messages=turns))
    assert "messages" in refused["message"] and refused["param"] == "messages"
    system = [{"role": "system", "content": ""}, {"role": "user", "content": QUESTION, "type": "text"}]
    assert content(server.post("chat/completions", model="instructed", messages=system))
    assert (
        "no place for a system turn"
        in error(server.post("chat/completions", model="say_it", messages=system))["message"]
    )


def test_the_same_tokens_alone_and_among_others(server: Running) -> None:
    alone = [content(server.chat("talk", QUESTION, seed=seed)) for seed in range(16)]

    def ask(seed: int) -> str:
        with httpx.Client(timeout=60, trust_env=False) as client:
            body = {"model": "talk", "messages": [{"role": "user", "content": QUESTION}], "seed": seed}
            more: dict[str, Any] = {"priority": seed % 3, "deadline": 5 + seed}
            if seed % 2:
                return content(client.post(f"{server.url}/chat/completions", json={**body, **more}))
            chunks = events(client.post(f"{server.url}/chat/completions", json={**body, "stream": True}))[:-1]
            return "".join(json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == alone


@pytest.mark.parametrize("model", ["self_consistency", "beam_search", "greedy", "constrained_json"])
def test_usage_has_what_the_cache_held_of_every_prompt(server: Running, model: str) -> None:
    """All but each prompt's last token, where that is computed for its logits."""
    usage = [server.chat(model, QUESTION, seed=2).json()["usage"] for _ in range(2)][1]
    prompts, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    assert 0.9 * prompts < cached <= prompts


def test_a_long_prompt_is_computed_once(server: Running) -> None:
    long = " ".join(["Ann has a red pen."] * 40)
    turns = [{"role": "user", "content": long}]

    def cached(model: str) -> float:
        usage = server.post("chat/completions", model=model, messages=turns, seed=1).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found / usage["prompt_tokens"]

    assert cached("talk") < 0.1
    # Another program, for another user.
    assert cached("say_it") > 0.9 and cached("talk") > 0.9
