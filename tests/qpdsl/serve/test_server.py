"""A real server on a free port, asked by a plain HTTP client: answers, streams, refusals, limits, load."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")
pytest.importorskip("prometheus_client", reason="serving needs qpdsl[serve]")

from qpdsl.executor.requests.errors import BudgetReached
from qpdsl.serve.http.bind_address import BindAddress
from qpdsl.serve.http.client_keys import add_key
from qpdsl.serve.http.routes import Limits
from tests.support.remote.stub_server import stub
from tests.support.serving.running_server import Running, events, running

JSON = {"content-type": "application/json"}
QUESTION = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
NOTE = "Order: 3 pens and 2 cups for Ann, express."
PROGRAMS = """\
model llm = "zoo/counting"

program say_it(problem: text, heat: float = 0.8) -> text {
  chat user=problem
  generate llm temperature=heat max_tokens=256
}

program cut_short(problem: text) -> text {
  chat user=problem
  generate llm temperature=0 max_tokens=4
}

program reply(history: messages, question: text) -> text {
  chat messages=history user=question
  generate llm max_tokens=64
}

program talk(turns: messages, temperature: float = 1) -> text {
  chat messages=turns
  generate llm temperature=temperature max_tokens=64
}

program instructed(problem: text, system: text = "") -> text {
  chat user="{system}{problem}"
  generate llm temperature=0 max_tokens=64
}

program slow(problem: text, n: int = 512) -> text {
  chat user=problem
  generate llm n=n temperature=50 max_tokens=256
  keep 1 by logprob
  return text
}

program nothing(problem: text) -> text {
  chat user=problem
  generate llm temperature=0 max_tokens=4
  where finished
  return text
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("served") / "mine.qp"
    file.write_text(PROGRAMS)
    return file


@pytest.fixture(scope="module")
def server(programs: Path) -> Iterator[Running]:
    targets = ["beam_search", "greedy", "constrained_json", str(programs)]
    with running(targets, fixed=["depth=20"], defaults=["width=2"], limits=Limits(quiet=0.05)) as server:
        yield server


def content(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text = response.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}
    found: dict[str, Any] = body["error"]
    return found


def until(holds: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def test_models(server: Running) -> None:
    listed = server.client.get(f"{server.url}/models").json()
    names = [model["id"] for model in listed["data"]]
    assert listed["object"] == "list"
    assert names[:5] == ["beam_search", "greedy", "constrained_json", "order", "meeting"]
    one = server.client.get(f"{server.url}/models/beam_search").json()
    assert one["object"] == "model" and one["owned_by"] == "qpdsl"
    # A parameter that the server sets is none of the clients'.
    assert one["parameters"] == {"problem": "text", "width": "int", "expand": "int"}
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
    assert len({said(temperature=5) for _ in range(4)}) > 1
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


@pytest.mark.parametrize("n", [1, 2])
def test_the_last_generate_is_streamed_token_by_token(server: Running, n: int) -> None:
    whole = server.chat("say_it", QUESTION, seed=1, n=n).json()
    response = server.chat("say_it", QUESTION, seed=1, n=n, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(response)
    assert done == "[DONE]"
    texts = [""] * n
    pieces = [0] * n
    for chunk in map(json.loads, chunks):
        assert chunk["object"] == "chat.completion.chunk" and chunk["usage"] is None
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        pieces[choice["index"]] += 1
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert min(pieces) > 5
    said = json.loads(usage)
    assert said["choices"] == []
    known = ("prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details")
    assert {name: said["usage"][name] for name in known} == {name: whole["usage"][name] for name in known}


def test_what_is_known_at_the_end_is_streamed_then_with_progress_on_request(server: Running) -> None:
    response = server.chat("beam_search", QUESTION, seed=1, stream=True, progress=True)
    comments = [line for line in response.text.split("\n\n") if line.startswith(": progress")]
    assert any("generate" in line for line in comments)
    role, text, end, done = events(response)
    assert json.loads(role)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert json.loads(text)["choices"][0]["delta"] == {"content": "12"}
    assert json.loads(end)["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"
    assert ": progress" not in server.chat("beam_search", QUESTION, seed=1, stream=True).text


def test_a_quiet_stream_is_kept_alive(server: Running) -> None:
    response = server.chat("slow", QUESTION, seed=1, stream=True, parameters={"n": 16})
    assert ": keep-alive" in response.text
    assert events(response)[-1] == "[DONE]"


def test_a_text_completion_is_streamed(server: Running) -> None:
    whole = server.post("completions", model="say_it", prompt=QUESTION, seed=1).json()
    *chunks, done = events(server.post("completions", model="say_it", prompt=QUESTION, seed=1, stream=True))
    read = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in read) == whole["choices"][0]["text"]
    assert read[-1]["finish_reason"] == "stop" and done == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_and_the_bound_cut_the_answer(server: Running, stream: bool) -> None:
    def said(**more: Any) -> tuple[str, str]:
        response = server.chat("say_it", QUESTION, seed=1, stream=stream, **more)
        if not stream:
            choice = response.json()["choices"][0]
            return choice["message"]["content"], choice["finish_reason"]
        choices = [json.loads(chunk)["choices"][0] for chunk in events(response)[:-1]]
        return "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]["finish_reason"]

    whole, why = said()
    assert whole == "3 * 4 = 12. The answer is 12." and why == "stop"
    assert said(stop=["answer", "zebra"]) == ("3 * 4 = 12. The ", "stop")
    assert said(stop=". T") == ("3 * 4 = 12", "stop")
    short, why = said(max_completion_tokens=3)
    assert whole.startswith(short) and 0 < len(short) < len(whole) and why == "length"
    assert said(max_tokens=200) == (whole, "stop")


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
        in error(server.post("chat/completions", model="greedy", messages=system))["message"]
    )


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 0.3}, "temperature", "--ignore temperature"),
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


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_page_of_another_site_could_send_is_refused(server: Running, kind: str | None) -> None:
    body = json.dumps({"model": "greedy", "messages": [{"role": "user", "content": QUESTION}]}).encode()
    headers = {} if kind is None else {"content-type": kind}
    response = server.client.post(f"{server.url}/chat/completions", content=body, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (415, "not_json")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model": NaN}', b"[" * 100_000, b"\xff\xfe", b'{"model": "greedy"}']
)
def test_bodies_that_are_none(server: Running, body: bytes) -> None:
    error(server.client.post(f"{server.url}/chat/completions", content=body, headers=JSON))


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
        assert error(server.chat("greedy", QUESTION), 500)["message"] == "a fault in the server; its log says more"
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


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_all(server: Running, stream: bool) -> None:
    gone = threading.Event()

    def leave() -> None:
        with httpx.Client(timeout=0.3, trust_env=False) as client:
            body = {"model": "slow", "messages": [{"role": "user", "content": QUESTION}], "stream": stream}
            try:
                with client.stream("POST", f"{server.url}/chat/completions", json=body) as response:
                    next(response.iter_bytes())
            except httpx.TimeoutException:
                pass
        gone.set()

    thread = threading.Thread(target=leave)
    thread.start()
    until(lambda: server.session.busy > 0)
    assert gone.wait(10)
    until(lambda: server.session.busy == 0 and server.app.gate.running == 0)
    thread.join()
    assert re.search(r'qpdsl_requests_total\{model="slow",outcome="cancelled"\} [1-9]', metrics(server))


def metrics(server: Running) -> str:
    return server.client.get(f"{server.root}/metrics").text


def test_figures(server: Running) -> None:
    before = metrics(server)
    server.chat("greedy", QUESTION, stream=True)
    error(server.chat("greedy", QUESTION, tools=[{}]))
    error(server.chat("no such model", QUESTION), 404)
    after = metrics(server)

    def figure(text: str, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    for name in (
        'qpdsl_requests_total{model="greedy",outcome="answered"}',
        'qpdsl_requests_total{model="greedy",outcome="refused"}',
        'qpdsl_requests_total{model="unknown",outcome="refused"}',
        'qpdsl_first_token_seconds_count{model="greedy"}',
        'qpdsl_request_seconds_count{model="greedy",outcome="answered"}',
        'qpdsl_answers_total{model="greedy"}',
    ):
        assert figure(after, name) == figure(before, name) + 1, name
    assert figure(after, 'qpdsl_completion_tokens_total{model="greedy"}') > 0
    assert figure(after, 'qpdsl_kv_pages{model="zoo/counting"}') > 0
    assert figure(after, "qpdsl_requests_running") == 0
    assert "no such model" not in after


def test_nothing_waits_for_acknowledgements() -> None:
    """A second packet on a connection that is kept would wait 40 ms for the client's acknowledgement of the first."""
    with BindAddress(port=0).bound() as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_limits_and_keys(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    key = add_key(file, "ann")
    assert key not in file.read_text()
    limits = Limits(body=2000, running=1, waiting=1, seconds=0.8)
    with running([str(programs)], limits=limits, keys=file, ignored=["temperature"]) as server:
        assert error(server.chat("say_it", QUESTION), 401)["type"] == "authentication_error"
        server.client.headers["authorization"] = "Bearer sk-wrong"
        assert error(server.chat("say_it", QUESTION), 401)["code"] == "invalid_api_key"
        assert error(server.client.get(f"{server.root}/metrics"), 401)
        assert server.client.get(f"{server.root}/healthz").json() == {"status": "ok"}
        assert server.client.get(f"{server.root}/readyz").status_code == 200
        server.client.headers["authorization"] = f"Bearer {key}"
        assert content(server.chat("say_it", QUESTION, temperature=0.3))
        # A key that is added counts at once.
        server.client.headers["authorization"] = f"Bearer {add_key(file, 'bob')}"
        assert content(server.chat("say_it", QUESTION))
        assert error(server.chat("say_it", QUESTION * 100), 413)["code"] == "body_too_large"

        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(server.chat, "slow", QUESTION)
            until(lambda: server.app.gate.running == 1)
            second = pool.submit(server.chat, "say_it", QUESTION)
            until(lambda: server.app.gate.waiting == 1)
            third = server.chat("say_it", QUESTION)
            assert error(third, 429)["type"] == "rate_limit_error"
            assert int(third.headers["retry-after"]) >= 1
            assert error(first.result(), 504)["code"] == "timeout"
            assert content(second.result())
        until(lambda: server.session.busy == 0)


def test_it_drains(programs: Path) -> None:
    with running([str(programs)], drain_seconds=20) as server, ThreadPoolExecutor(1) as pool:
        running_on = pool.submit(server.chat, "slow", QUESTION, parameters={"n": 64})
        until(lambda: server.app.gate.running == 1)
        server.listening.stop()
        until(lambda: server.app.gate.draining)
        with httpx.Client(trust_env=False) as other:
            assert other.get(f"{server.root}/readyz").status_code == 503
            refused = other.post(
                f"{server.url}/chat/completions",
                json={"model": "say_it", "messages": [{"role": "user", "content": QUESTION}]},
            )
        assert error(refused, 503)["code"] == "draining"
        assert content(running_on.result())


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_end_in_time_is_given_up(programs: Path, stream: bool) -> None:
    with running([str(programs)], drain_seconds=0.1) as server, ThreadPoolExecutor(1) as pool:
        running_on = pool.submit(server.chat, "slow", QUESTION, stream=stream)
        until(lambda: server.session.busy > 0)
        server.listening.stop()
        response = running_on.result()
        if stream:
            told, done = events(response)
            assert json.loads(told)["error"]["code"] == "draining" and done == "[DONE]"
        else:
            assert error(response, 503)["code"] == "draining"
        until(lambda: server.session.busy == 0)


FAR = """\
model far = "vllm:{url}#stub"
model llm = "zoo/counting"

program from_afar(problem: text) -> text {{
  chat user=problem
  generate far temperature=0.8 max_tokens=16
}}

program from_here(problem: text) -> text {{
  chat user=problem
  generate llm temperature=0 max_tokens=64
}}
"""


def test_a_model_on_a_server_that_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with stub("vllm") as far:
        (tmp_path / "far.qp").write_text(FAR.format(url=far.url))
        with running([str(tmp_path / "far.qp")], expose=["far"], server_timeout=0.3) as server:
            programs = [("from_afar", {}), ("from_afar", {"n": 3}), ("far", {"max_tokens": 4, "temperature": 1})]
            there = [server.chat(model, QUESTION, seed=1, **more).json() for model, more in programs]
            # The server's own count, which is not that of our bytes.
            assert 0 < there[-1]["usage"]["prompt_tokens"] < len(QUESTION)
            here = content(server.chat("from_here", QUESTION))
            # Its tokens are none that we know, and where they end is not for us to say.
            for name, value in (("logprobs", 0), ("return_token_ids", True), ("prompt", [1, 2]), ("ignore_eos", True)):
                body = {"model": "far", "prompt": QUESTION, name: value}
                assert error(server.post("completions", **body))["param"] == name
            assert error(server.client.post(f"{server.root}/tokenize", json={"model": "far", "prompt": "a"}))
            far.stop()
            for model, more in programs:
                gone = server.chat(model, QUESTION, seed=1, **more)
                assert error(gone, 503)["code"] == "server_gone" and int(gone.headers["retry-after"]) > 0
                *_, told, done = events(server.chat(model, QUESTION, stream=True, **more))
                assert json.loads(told)["error"]["code"] == "server_gone" and done == "[DONE]"
            assert content(server.chat("from_here", QUESTION)) == here
            far.start()
            back = [server.chat(model, QUESTION, seed=1, **more).json() for model, more in programs]
            assert [one["choices"] for one in back] == [one["choices"] for one in there]
