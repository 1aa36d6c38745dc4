"""Programs and bare models of a server whose tokens only that server knows, behind our own server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.remote.stub_server import StubServer, stub
from tests.support.serving.replies import content, error
from tests.support.serving.running_server import Running, events, running
from tests.support.serving.served_programs import QUESTION
from tests.support.user_cache import own_cache

PROGRAMS = """\
model far = "vllm:{url}#stub"

program ask(problem: text) -> text {{
  chat user=problem
  generate far temperature=0 max_tokens=64
}}

program warm(problem: text, temperature: float = 0) -> text {{
  chat user=problem
  generate far temperature=temperature max_tokens=64
}}

program longest(problem: text) -> text {{
  chat user=problem
  generate far n=3 temperature=1 max_tokens=64
  keep 1 by len(text)
  return text
}}
"""


@pytest.fixture(scope="module")
def far() -> Iterator[StubServer]:
    with stub("vllm") as server:
        yield server


@pytest.fixture(scope="module")
def server(far: StubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("far")
    (folder / "far.qp").write_text(PROGRAMS.format(url=far.url))
    with pytest.MonkeyPatch.context() as patch:
        own_cache(folder / "cache", patch)
        with running([str(folder / "far.qp")], expose=["far"]) as running_server:
            yield running_server


def test_max_tokens_are_tokens_of_the_model(server: Running) -> None:
    whole = server.chat("ask", QUESTION, max_tokens=64).json()
    tokens, text = whole["usage"]["completion_tokens"], whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == "stop" and 8 < tokens < len(text)
    bare = server.chat("far", QUESTION, temperature=0, max_tokens=8).json()
    for name in ("max_tokens", "max_completion_tokens"):
        cut = server.chat("ask", QUESTION, **{name: 8}).json()
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["choices"][0]["message"]["content"] == bare["choices"][0]["message"]["content"]
        assert cut["usage"]["completion_tokens_details"]["answer_tokens"] == 8
    streamed = events(server.chat("ask", QUESTION, max_tokens=8, stream=True))
    chunks = [json.loads(event)["choices"][0] for event in streamed[:-1]]
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == content(
        server.chat("ask", QUESTION, max_tokens=8)
    )
    assert chunks[-1]["finish_reason"] == "length"


def test_an_answer_that_was_chosen_is_cut_by_its_share(server: Running) -> None:
    whole = server.chat("longest", QUESTION, seed=3).json()
    text, tokens = (
        whole["choices"][0]["message"]["content"],
        whole["usage"]["completion_tokens_details"]["answer_tokens"],
    )
    same = server.chat("longest", QUESTION, seed=3, max_tokens=tokens).json()["choices"][0]
    assert (same["message"]["content"], same["finish_reason"]) == (text, "stop")
    half = server.chat("longest", QUESTION, seed=3, max_tokens=tokens // 2).json()
    cut = half["choices"][0]["message"]["content"]
    assert text.startswith(cut) and abs(len(cut) - len(text) / 2) <= len(text) / tokens + 1
    assert half["choices"][0]["finish_reason"] == "length"
    assert half["usage"]["completion_tokens_details"]["answer_tokens"] <= tokens // 2 + 1


def test_the_context_is_that_of_the_server(far: StubServer, server: Running) -> None:
    cards = {card["id"]: card for card in server.client.get(f"{server.url}/models").json()["data"]}
    assert cards["far"]["max_model_len"] == far.traits.context
    for model in ("far", "ask"):
        told = error(server.chat(model, "2 + 2? " * far.traits.context))
        assert f"maximum context length is {far.traits.context} tokens" in told["message"]
        assert told["type"] == "invalid_request_error"


@pytest.mark.parametrize("model", ["far", "warm"])
def test_a_temperature_beyond_2_is_refused_here(server: Running, model: str) -> None:
    told = error(server.chat(model, QUESTION, temperature=9))
    assert told["param"] == "temperature" and "from 0 to 2" in told["message"]
    assert content(server.chat(model, QUESTION, temperature=2, max_tokens=4, seed=1))


def test_what_the_server_calls_a_bad_request_is_one(far: StubServer, server: Running) -> None:
    far.fail("bad_request", times=2, message="no turn of the user", param="messages")
    for model in ("ask", "far"):
        told = error(server.chat(model, "What?"))
        assert told["param"] == "messages" and f"{far.url} answered 400: no turn of the user" in told["message"]
