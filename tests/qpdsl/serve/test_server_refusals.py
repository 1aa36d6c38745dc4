"""What a server refuses, and in which words."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")
pytest.importorskip("prometheus_client", reason="serving needs qpdsl[serve]")

from qpdsl.executor.requests.errors import BudgetReached
from qpdsl.serve.lenience import Lenience
from tests.support.serving.replies import content, error, metrics, until
from tests.support.serving.running_server import Running, events, running
from tests.support.serving.served_programs import JSON, QUESTION


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"top_p": 0.3}, "top_p", "--ignore top_p"),
        ({"temprature": 1}, "temprature", "did you mean `temperature`?"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"logprobs": True}, "logprobs", "no log-probabilities"),
        ({"top_logprobs": 3}, "top_logprobs", "no others"),
        ({"width": 3}, "width", '"parameters"'),
        ({"parameters": {"width": "x"}}, "parameters", "takes a whole number"),
        ({"parameters": {"width": 0}}, "parameters", "keep"),
        ({"parameters": {"wdth": 2}}, "parameters", "did you mean `width`?"),
        ({"parameters": {"depth": 2}}, "parameters", "set by the server"),
        ({"parameters": {"problem": "other"}}, "parameters", "given twice"),
        ({"n": 0}, "n", "from 1"),
        ({"n": True}, "n", "whole number"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"stop": [""]}, "stop", "empty"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs `stream`"),
        ({"stream": 1}, "stream", "true or false"),
        ({"priority": "high"}, "priority", "whole number"),
        ({"deadline": -1}, "deadline", "from 0"),
        ({"prompt": "x"}, "prompt", "takes `messages`"),
    ],
)
def test_what_is_not_honoured_is_refused(server: Running, fields: dict[str, Any], param: str, words: str) -> None:
    refused = error(server.chat("beam_search", QUESTION, **fields))
    assert refused["param"] == param and words in refused["message"]
    assert refused["type"] == "invalid_request_error"


def test_an_empty_question_is_refused(server: Running) -> None:
    refused = error(server.chat("beam_search", ""))
    assert (refused["message"], refused["param"]) == ("the last user message is empty", "messages")
    refused = error(server.post("completions", model="beam_search", prompt=""))
    assert (refused["message"], refused["param"]) == ("the prompt is empty", "prompt")


def test_what_asks_for_nothing_is_taken(server: Running) -> None:
    """These fields, or these values, are what clients send without being asked to."""
    neutral = {
        "frequency_penalty": 0.0,
        "presence_penalty": None,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "none",
        "n": 1,
        "temperature": 0,
        "top_p": 1.0,
        "stop": [],
        "user": "somebody",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "logprobs": False,
        "top_logprobs": None,
        "response_format": {"type": "text"},
        "seed": 1234,
        "max_tokens": 256,
        "repetition_penalty": 1.0,
        "parameters": {},
        "priority": -1,
        "deadline": 30,
    }
    assert content(server.chat("greedy", QUESTION, **neutral)) == "12"


@pytest.mark.parametrize(("name", "value"), [("priority", -5), ("priority", "high"), ("deadline", 3)])
def test_order_is_for_the_server_to_permit(programs: Path, name: str, value: Any) -> None:
    with running([str(programs)], lenience=Lenience(frozenset({"deadline"}))) as server:
        asked = server.chat("cut_short", QUESTION, **{name: value})
        if name == "deadline":
            assert content(asked)
        else:
            assert "--allow-priority" in error(asked)["message"] and error(asked)["param"] == name
        assert content(server.chat("cut_short", QUESTION, priority=0))


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_page_of_another_site_could_send_is_refused(server: Running, kind: str | None) -> None:
    body = json.dumps({"model": "greedy", "messages": [{"role": "user", "content": QUESTION}]}).encode()
    headers = {} if kind is None else {"content-type": kind}
    response = server.client.post(f"{server.url}/chat/completions", content=body, headers=headers)
    refused = response.json()["error"]
    assert (response.status_code, refused["code"]) == (415, "not_json")
    assert "`-H 'content-type: application/json'`" in refused["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model": NaN}', b"[" * 100_000, b"\xff\xfe", b'{"model": "greedy"}']
)
def test_bodies_that_are_none(server: Running, body: bytes) -> None:
    error(server.client.post(f"{server.url}/chat/completions", content=body, headers=JSON))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"model": "greedy", "n": 1, "n": 4}', "the field `n` twice"),
        ('{"model": "greedy", "parameters": {"x": [{"ä": 1, "\\u00e4": 2}]}}', "the field `ä` twice"),
        ('{"model": "greedy", "seed": ' + "1" * 5000 + "}", "5,000 digits"),
    ],
)
def test_json_that_two_readers_would_read_in_two_ways(server: Running, body: str, words: str) -> None:
    assert words in error(server.client.post(f"{server.url}/chat/completions", content=body, headers=JSON))["message"]


def test_a_compressed_body(server: Running) -> None:
    body = json.dumps({"model": "greedy", "messages": [{"role": "user", "content": QUESTION}]})
    for coding, status in {"identity": 200, "gzip": 415}.items():
        headers = {**JSON, "content-encoding": coding}
        response = server.client.post(f"{server.url}/chat/completions", content=body, headers=headers)
        assert response.status_code == status


def test_nobody_is_sent_elsewhere(server: Running) -> None:
    """Whoever follows sends his key along, to where `Host` says."""
    for path in ("/v1/chat/completions/", "/healthz/", "//v1/models"):
        response = server.client.post(f"{server.root}{path}", json={}, headers={"host": "attacker.example"})
        assert response.status_code == 404 and "location" not in response.headers


def test_a_client_that_leaves_before_it_has_said_all(server: Running) -> None:
    host, port = server.root.removeprefix("http://").split(":")
    cancelled = 'qpdsl_requests_total{model="unknown",outcome="cancelled"} 1.0'
    with socket.create_connection((host, int(port))) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head + b'{"model":')
    until(lambda: cancelled in metrics(server))
    assert server.faults == []


@pytest.mark.parametrize("field", ["parameters", "response_format", "metadata"])
def test_values_that_nest_deep(server: Running, field: str) -> None:
    for depth in (300, 900, 5000):
        deep = '{"a": ' * depth + "[]" + "}" * depth
        for inner in (deep, f'{{"width": {deep}}}'):
            turns = json.dumps([{"role": "user", "content": QUESTION}])
            body = f'{{"model": "beam_search", "messages": {turns}, "{field}": {inner}}}'
            response = server.client.post(f"{server.url}/chat/completions", content=body, headers=JSON)
            assert response.status_code in (200, 400), response.text
    assert server.faults == []


ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    10**400,
    1e300,
    "",
    "\ud800",
    "x" * 500,
    [],
    [[]],
    [None],
    {},
    {"a": {"\ud800": 1}},
]
READ = [
    *("model", "messages", "stream", "stream_options", "n", "seed", "stop", "max_tokens", "response_format"),
    *("parameters", "priority", "deadline", "temperature", "logprobs", "top_logprobs", "progress", "\ud800"),
]


@pytest.mark.parametrize("name", READ)
def test_odd_values_are_refused_or_taken_but_never_a_fault(server: Running, name: str) -> None:
    for value in ODD:
        turns = [{"role": "user", "content": QUESTION}]
        body = json.dumps({"model": "cut_short", "messages": turns, name: value})
        response = server.client.post(f"{server.url}/chat/completions", content=body, headers=JSON)
        assert response.status_code in (200, 400, 404, 422), (value, response.text)
        if response.status_code != 200:
            error(response, response.status_code)


@pytest.mark.parametrize("name", ["role", "content", "name"])
def test_odd_turns(server: Running, name: str) -> None:
    for value in ODD:
        body = json.dumps({"model": "cut_short", "messages": [{"role": "user", "content": QUESTION, name: value}]})
        assert server.client.post(f"{server.url}/chat/completions", content=body, headers=JSON).status_code in (
            200,
            400,
        )


def test_a_program_without_an_answer(server: Running) -> None:
    response = server.chat("nothing", QUESTION)
    failed = error(response, 422)
    assert "no row is left" in failed["message"] and failed["code"] == "program_failed"
    assert response.headers["x-should-retry"] == "false"
    *_, told, done = events(server.chat("nothing", QUESTION, stream=True))
    assert json.loads(told) == {"error": failed} and done == "[DONE]"


def test_a_fault_of_the_server_itself(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    program = server.app.models["greedy"]
    for name in ("read", "_arguments"):
        monkeypatch.setattr(program, name, lambda *given: 1 / 0)
        assert error(server.chat("greedy", QUESTION), 500)["message"] == "internal server error; see the server's log"
        monkeypatch.undo()
        assert [type(fault) for fault in server.faults] == [ZeroDivisionError]
        server.faults.clear()
    assert content(server.chat("greedy", QUESTION)) == "12"


def test_several_answers_where_nothing_more_may_be_spent(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def spent(*given: Any, **named: Any) -> Any:
        raise BudgetReached("all is spent")

    monkeypatch.setattr(server.session, "run", spent)
    for stream in (False, True):
        response = server.chat("greedy", QUESTION, n=2, stream=stream)
        told = json.loads(events(response)[0])["error"] if stream else error(response, 429)
        assert told["message"] == "all is spent" and told["code"] == "insufficient_quota"
