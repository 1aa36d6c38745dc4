"""Clients with keys of their own: nothing tells one what another has asked, and the log tells who asked what."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")

from qpdsl.serve.http.access_log import AccessLog, RequestRecord
from qpdsl.serve.http.client_keys import add_key
from tests.support.serving.replies import content, error, metrics, until
from tests.support.serving.running_server import Running, running

LONG = " ".join(["Ann has a red pen."] * 40)


@pytest.fixture(scope="module", params=[False, True], ids=["apart", "shared"])
def keyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Any]]:
    folder = tmp_path_factory.mktemp("keys")
    keys = {name: add_key(folder / "keys", name) for name in ("alice", "bob")}
    with running(["greedy"], expose=["llm"], keys=folder / "keys", shared_cache=request.param) as server:
        yield server, keys


def ask(server: Running, key: str, prompt: str, **more: Any) -> dict[str, Any]:
    server.client.headers["authorization"] = f"Bearer {key}"
    answer = server.post("completions", model="llm", prompt=prompt, max_tokens=4, temperature=0, **more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_who_asks_finds_only_what_he_asked_himself(keyed: tuple[Running, Any], request: pytest.FixtureRequest) -> None:
    server, keys = keyed
    shared = "shared" in request.node.name
    first = ask(server, keys["alice"], LONG)
    assert cached(first) == 0
    other = ask(server, keys["bob"], LONG)
    assert (cached(other) > 100) is shared
    again = ask(server, keys["alice"], LONG)
    assert cached(again) > 100
    assert first["choices"] == other["choices"] == again["choices"]


def test_who_asks_finds_only_constraints_of_his_own(keyed: tuple[Running, Any], request: pytest.FixtureRequest) -> None:
    """One that is known already is read faster."""
    server, keys = keyed
    constrainer = server.session.text_model("zoo/counting").constrainer
    sizes = []
    for name in ("alice", "alice", "bob", "bob"):
        ask(server, keys[name], "1 + 1 =", structured_outputs={"regex": f"{request.node.name}|yes"})
        sizes.append(constrainer.kept_bytes)
    assert sizes[0] == sizes[1] and sizes[2] == sizes[3]
    assert (sizes[1] == sizes[2]) is ("shared" in request.node.name)


def test_what_is_told_of_each_key(keyed: tuple[Running, Any]) -> None:
    server, keys = keyed
    begin = time.monotonic()

    def log() -> list[RequestRecord]:
        """Of the requests from here on: lines of earlier ones may come now."""
        return [record for record in server.log if record.arrived >= begin]

    # Begins as nothing does that she asked before.
    ask(server, keys["alice"], "8 + 1 =")
    server.client.headers["authorization"] = "Bearer sk-wrong"
    error(server.post("completions", model="llm", prompt="1 + 1 ="), 401)
    server.client.headers["authorization"] = f"Bearer {keys['bob']}"
    error(server.post("completions", model="nobody\n", prompt="1 + 1 ="), 404)
    # A line comes after its answer.
    until(lambda: len(log()) == 3)
    lines = [record.line() for record in log()]
    assert [(record.key, record.model, record.status) for record in log()] == [
        ("alice", "llm", 200),
        ("", "", 401),
        ("bob", "unknown", 404),
    ]
    assert re.search(r" prompt_tokens=\d+ cached_tokens=0 completion_tokens=\d+ seconds=\d+\.\d{3}$", lines[0])
    text = metrics(server)
    assert 'qpdsl_key_requests_total{key="alice",outcome="answered"}' in text
    assert 'qpdsl_key_completion_tokens_total{key="alice"}' in text
    assert 'qpdsl_key_requests_total{key="bob",outcome="refused"}' in text
    assert not any(key in text or key in line for key in keys.values() for line in lines)


def test_what_a_client_sends_makes_one_line_of_the_log(tmp_path: Path) -> None:
    log = AccessLog.at(tmp_path / "log")
    log.write(RequestRecord("GET", "/v1/models/a b\x1b]0;pwn\x07\n%0A" + "x" * 900, model='a" key=root', status=404))
    log.close()
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.isascii() and line.isprintable() and len(line) < 400
    assert re.search(r'^time=\S+ method=GET path=".*" model="a\\" key=root" status=404 seconds=\d', line)
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_a_log_that_nobody_reads_holds_up_nothing() -> None:
    reading, writing = os.pipe()
    log = AccessLog(writing)
    for _ in range(12_000):
        log.write(RequestRecord("GET", "/v1/models/" + "x" * 100))
    os.close(reading)
    log.close()


def test_a_vote_that_is_decided_early_counts_what_the_cache_had() -> None:
    with running(["self_consistency"]) as server:
        usages = []
        for _ in range(2):
            answer = server.chat("self_consistency", LONG + " How many pens has Ann?", seed=1)
            assert content(answer)
            usages.append(answer.json()["usage"])
        assert usages[1]["prompt_tokens_details"]["cached_tokens"] > 0.9 * usages[1]["prompt_tokens"]
        assert 'qpdsl_cached_prompt_tokens_total{model="self_consistency"} 0' not in metrics(server)
