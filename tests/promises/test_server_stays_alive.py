"""The promise that no request holds up a server: not its health, nor others' tokens, nor its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")

import httpx

from qpdsl.cli.exits import Exit
from tests.support.forked import MAIN, Forked, Forks
from tests.support.paths import ROOT

REQUESTS = 26
DEAR_REQUESTS = 1
SECONDS = 1.0
PROMPT = {"model": "llm", "prompt": "Tom", "max_tokens": 2}
MANY = {**PROMPT, "max_tokens": 12, "n": 128, "temperature": 1.5}


def schema(number: int, schema: Any) -> dict[str, Any]:
    named = {"name": f"s{number}", "schema": {"$comment": str(number), **schema}}
    return {**PROMPT, "response_format": {"type": "json_schema", "json_schema": named}}


def many_properties(names: list[str]) -> dict[str, Any]:
    return schema(0, {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names})


# Each as large as is taken, or larger than that; the number keeps one from being known already.
BOMBS: list[Callable[[int], Any]] = [
    lambda number: {**PROMPT, "structured_outputs": {"choice": [f"{number} {i}" for i in range(25_000)]}},
    lambda number: {**PROMPT, "structured_outputs": {"choice": [f"{number} {i}" for i in range(1_000)]}},
    lambda number: {**PROMPT, "structured_outputs": {"choice": [f"{number}" + "x" * 1_500_000]}},
    lambda number: schema(number, {"enum": [f"v{number} {i}" for i in range(25_000)]}),
    lambda number: schema(
        number, {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "string"}}} for i in range(500)]}
    ),
    lambda number: schema(number, {"properties": {f"p{number}_{i}": {"type": "string"} for i in range(1_000)}}),
    lambda number: {**PROMPT, "structured_outputs": {"regex": f"{number}(.*a.{{18}}){{3}}[0-9]*"}},
    # Whether a text matches all of these takes for ever to find.
    lambda number: schema(number, {"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}"} for i in range(1, 25)]}),
    lambda number: {**PROMPT, "prompt": f"{number} pens and " * 100_000},
    lambda number: {**PROMPT, "prompt": [[1]] * 200_000},
    lambda number: {**PROMPT, **{f"k{number}_{i}": 1 for i in range(100_000)}},
    lambda number: {**PROMPT, "x" * 1_500_000: number},
    lambda number: {"model": "best_of_n", "prompt": "1 + 1 = ?", "parameters": {"n": 65_536}, "n": 128},
]

# Of these each of many samples has a constraint that is dear at every token.
DEAR: list[Callable[[int], Any]] = [
    lambda number: {**many_properties([f"p{number}_{i}" for i in range(2_000)]), **MANY},
    lambda number: {**MANY, "structured_outputs": {"grammar": f"start: a\na: a a | a a a | /[a-z {number}]/\n"}},
    lambda number: {**MANY, "structured_outputs": {"regex": f"(.*(a|b.{{40}}|c.{{90}}).{{200}}){{4}}[0-9]*{number}"}},
]


@pytest.fixture(scope="module")
def served(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Forked, str]:
    """A server, and its address. The last test ends it."""
    folder = tmp_path_factory.mktemp("served") / "server"
    process = forks.start(folder, MAIN, "serve", "best_of_n", "--expose", "llm", "--port", "0")
    while (url := re.search(r"at (http://\S+)/v1", process.err)) is None:
        assert process.alive, process.err
        time.sleep(0.01)
    return process, url[1]


class Waits:
    """The longest waits for something."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.health = self.token = 0.0
        self.tokens = 0

    def watch_health(self, url: str) -> None:
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self.done.is_set():
                began = time.monotonic()
                assert client.get(f"{url}/healthz").status_code == 200
                self.health = max(self.health, time.monotonic() - began)
                time.sleep(0.02)

    def watch_tokens(self, url: str) -> None:
        body = {"model": "llm", "prompt": "Mia has", "max_tokens": 900, "ignore_eos": True, "stream": True}
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self.done.is_set():
                with client.stream("POST", f"{url}/v1/completions", json=body) as stream:
                    last: float | None = None
                    for _ in stream.iter_raw():
                        if last is not None:
                            self.token = max(self.token, time.monotonic() - last)
                        last, self.tokens = time.monotonic(), self.tokens + 1
                        if self.done.is_set():
                            break


def scheduled(process: int) -> tuple[int, int]:
    """Nanoseconds that the main thread of a process ran, and that it waited for a core which others had."""
    with contextlib.suppress(OSError):
        ran, waited, _ = Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()
        return int(ran), int(waited)
    return 0, 0


def test_other_clients_go_on_while_requests_are_read(served: tuple[Forked, str]) -> None:
    process, url = served
    before = scheduled(process.pid)
    bombs = [*(BOMBS[number % len(BOMBS)](number) for number in range(REQUESTS))]
    bombs += [dear(REQUESTS + number) for number in range(DEAR_REQUESTS) for dear in DEAR]
    bodies = [json.dumps(bomb).encode() for bomb in bombs]
    with ThreadPoolExecutor(24) as pool:
        waits = Waits()
        watched = [
            pool.submit(waits.watch_health, url),
            pool.submit(waits.watch_tokens, url),
        ]
        until = time.monotonic() + 30
        while not waits.tokens and time.monotonic() < until:
            time.sleep(0.01)

        def send(body: bytes) -> int:
            with httpx.Client(timeout=120, trust_env=False) as client:
                head = {"content-type": "application/json"}
                return client.post(f"{url}/v1/completions", content=body, headers=head).status_code

        answers = list(pool.map(send, bodies))
        waits.done.set()
        for one in watched:
            one.result()
    assert set(answers) <= {200, 400, 422, 429, 503}
    ran, waited = (now - then for now, then in zip(scheduled(process.pid), before, strict=True))
    bound = SECONDS * (1 + waited / max(ran, 1))
    assert waits.health < bound and waits.token < bound, (waits.health, waits.token, bound)


# A call that takes minutes, and in which no handler of a signal runs.
HANGS = """
import json, signal, sys
from llguidance import LLMatcher, LLTokenizer
from qpdsl.cli.signals import end_by_second_signal, watch_signals

watch_signals()
end_by_second_signal()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
grammar = LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(f"choice {i}") for i in range(400_000)))
tokenizer = LLTokenizer("byte")
print("begins", flush=True)
LLMatcher(tokenizer, grammar, log_level=0)
"""


def test_the_second_signal_ends_it_whatever_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begins\n"
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == Exit.INTERRUPTED
        finally:
            process.kill()


def test_the_second_signal_ends_it_at_once(forks: Forks, served: tuple[Forked, str]) -> None:
    process, url = served
    body = {"model": "llm", "prompt": "Mia has", "max_tokens": 900, "ignore_eos": True, "n": 128}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=60, trust_env=False)
        while not httpx.get(f"{url}/metrics", trust_env=False).text.count("qpdsl_requests_running 1.0"):
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(2.5)
        assert process.alive, "the first signal lets requests end, however long that takes"
        sent = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        ((code, at),) = forks.ended([process])
        assert code == Exit.INTERRUPTED and at - sent < 5
        assert isinstance(asked.exception(), httpx.HTTPError)
