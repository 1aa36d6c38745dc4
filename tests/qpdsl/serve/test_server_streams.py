"""Answers that are streamed, and clients that go away."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")
pytest.importorskip("prometheus_client", reason="serving needs qpdsl[serve]")

from tests.support.serving.replies import metrics, until
from tests.support.serving.running_server import Running, events
from tests.support.serving.served_programs import QUESTION


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
    until(lambda: server.session.busy == 0 and server.app.admission.running == 0)
    thread.join()
    assert re.search(r'qpdsl_requests_total\{model="slow",outcome="cancelled"\} [1-9]', metrics(server))
