"""Figures, limits, keys, and how a server ends."""

from __future__ import annotations

import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")
pytest.importorskip("prometheus_client", reason="serving needs qpdsl[serve]")

from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.serve.http.client_keys import add_key
from qpdsl.serve.http.listening import BindAddress
from qpdsl.serve.http.routes import Limits
from qpdsl.serve.lenience import Lenience
from tests.support.remote.stub_server import stub
from tests.support.serving.replies import content, error, metrics, until
from tests.support.serving.running_server import Running, events, running
from tests.support.serving.served_programs import QUESTION
from tests.support.user_cache import own_cache


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


def test_what_takes_long_to_read_is_read_beside_the_loop(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loops = server.app.models["say_it"], list[bool]()
    read = type(model).read
    serving = {thread for thread in threading.enumerate() if not thread.name.startswith("qpdsl reads")}

    def noted(self: Any, request: Any) -> Any:
        loops.append(threading.current_thread() in serving)
        return read(self, request)

    monkeypatch.setattr(type(model), "read", noted)
    bodies: list[dict[str, Any]] = [{}, {"user": "x" * 3000}, {"response_format": {"type": "text"}}]
    for more in bodies:
        assert content(server.chat("say_it", QUESTION, seed=1, **more))
    assert loops == [True, False, False]


def test_limits_and_keys(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    key = add_key(file, "ann")
    assert key not in file.read_text()
    limits = Limits(body=2000, running=1, waiting=1, seconds=3.0)
    with running([str(programs)], limits=limits, keys=file, lenience=Lenience(frozenset({"temperature"}))) as server:
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
            until(lambda: server.app.admission.running == 1)
            second = pool.submit(server.chat, "say_it", QUESTION)
            until(lambda: server.app.admission.waiting == 1)
            third = server.chat("say_it", QUESTION)
            assert error(third, 429)["type"] == "rate_limit_error"
            assert int(third.headers["retry-after"]) >= 1
            assert error(first.result(), 504)["code"] == "timeout"
            assert content(second.result())
        until(lambda: server.session.busy == 0)


def test_it_drains(programs: Path) -> None:
    with running([str(programs)], drain_seconds=20) as server, ThreadPoolExecutor(1) as pool:
        running_on = pool.submit(server.chat, "slow", QUESTION, parameters={"n": 16})
        until(lambda: server.app.admission.running == 1)
        server.listening.stop()
        until(lambda: server.app.admission.draining)
        assert server.told == ["finishing 1 request, up to 20 s; Ctrl-C again ends at once"]
        with httpx.Client(trust_env=False) as other:
            assert other.get(f"{server.root}/readyz").status_code == 503
            refused = other.post(
                f"{server.url}/chat/completions",
                json={"model": "say_it", "messages": [{"role": "user", "content": QUESTION}]},
            )
        assert error(refused, 503)["code"] == "draining"
        # Of samples at such a temperature the likeliest may be an empty one.
        assert running_on.result().status_code == 200


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
            until(lambda: bool(server.log))
            assert "status=200 error=503" in server.log[0].line()
        else:
            assert error(response, 503)["code"] == "draining"
        until(lambda: server.session.busy == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_the_engine(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs gets an answer that says so, and then the server ends by the engine's own error."""
    with running([], expose=["llm=zoo/counting"]) as server, ThreadPoolExecutor(4) as pool:

        def ask(number: int) -> httpx.Response:
            body = {"model": "llm", "prompt": f"Tom has {number} pens.", "max_tokens": 900, "ignore_eos": True}
            with httpx.Client(timeout=60, trust_env=False) as client:
                return client.post(f"{server.url}/completions", json={**body, "stream": stream, "n": 8})

        asked = [pool.submit(ask, number) for number in range(4)]
        until(lambda: server.session.busy >= 32)

        def fails(*_: object) -> None:
            raise MemoryError("no more")

        monkeypatch.setattr(ModelRunner, "collect", fails)
        for response in (one.result() for one in asked):
            if stream:
                *_, told, done = events(response)
                assert json.loads(told)["error"]["code"] == "engine_failed" and done == "[DONE]"
            else:
                assert error(response, 503)["type"] == "server_error" and int(response.headers["retry-after"]) > 0
        with pytest.raises(MemoryError, match="no more"):
            server.ended.result(20)


def test_nothing_runs_where_clients_have_gone() -> None:
    with running([], expose=["llm=zoo/counting"]) as server:
        host, port = server.root.removeprefix("http://").split(":")
        body = {"model": "llm", "prompt": "Tom", "max_tokens": 900, "ignore_eos": True, "n": 16, "stream": True}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            received = b""
            while b"data: " not in received:
                received += connection.recv(4096)
        until(lambda: server.session.busy == 0)
        assert 'qpdsl_engine_running_sequences{model="zoo/counting"} 0.0' in metrics(server)
        until(lambda: any(record.path == "/v1/completions" for record in server.log))


def test_the_log_says_that_a_client_has_gone() -> None:
    with running([], expose=["zoo/counting"]) as server:
        body = {"model": "counting", "prompt": "Tom", "max_tokens": 900, "ignore_eos": True, "n": 16}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/completions", json=body, timeout=0.5, trust_env=False)
        until(lambda: bool(server.log))
        assert " status=gone " in server.log[0].line()


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
    own_cache(tmp_path / "cache", monkeypatch)
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
            # How it writes calls is none of what a server tells.
            tools = [{"type": "function", "function": {"name": "add"}}]
            assert error(server.chat("far", QUESTION, tools=tools))["param"] == "tools"
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
