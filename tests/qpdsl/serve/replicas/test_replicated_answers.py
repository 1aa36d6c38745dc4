"""Two processes behind one door, one of them killed: the bytes of one process, streams too."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")

from qpdsl.executor.events.events import REPLICA_SIGN
from qpdsl.serve.replicas.replica_pool import ReplicaPool
from tests.support.serving.running_server import running
from tests.support.serving.served_programs import QUESTION

if TYPE_CHECKING:
    from tests.support.serving.running_server import Running

# At this temperature a text goes on until it is cut.
HOT = {"parameters": {"heat": 50}}
LONG = [("say_it", {"stream": True, **HOT}) for _ in range(6)]
LONG += [("llm", {"stream": True, "temperature": 5, "max_tokens": 200, "return_token_ids": True})] * 4
ASKED = [
    *LONG,
    ("llm", {"temperature": 5, "max_tokens": 40, "n": 2, "logprobs": True}),
    ("llm", {"stream": True, "temperature": 5, "max_tokens": 40, "n": 2, "logprobs": True, "stop": "a"}),
    ("say_it", HOT),
    ("self_consistency", {"parameters": {"n": 3}}),
    ("beam_search", {"stream": True}),
    ("nothing", {}),
    ("nothing", {"stream": True}),
]
BODIES: list[dict[str, Any]] = [
    {"model": model, "seed": seed, "messages": [{"role": "user", "content": QUESTION}], **more}
    for seed, (model, more) in enumerate(ASKED)
]
for body in BODIES:
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}


def said(server: Running, body: dict[str, Any], chunk: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What an answer says, whatever its pieces were and whatever a cache found. `chunk` is called with each piece."""
    url = f"{server.url}/chat/completions"
    if not body.get("stream"):
        whole = httpx.post(url, json=body, timeout=60, trust_env=False).json()
        whole.pop("id", None), whole.pop("created", None), whole.get("usage", {}).pop("prompt_tokens_details", None)
        return dict(whole)
    found: dict[str, Any] = {}
    with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk()
            event = json.loads(line.removeprefix("data: "))
            found.update({name: event[name] for name in ("error", "system_fingerprint") if name in event})
            if event.get("usage"):
                event["usage"].pop("prompt_tokens_details")
                found["usage"] = event["usage"]
            for choice in event.get("choices", ()):
                own = found.setdefault(choice["index"], {"text": "", "ids": [], "logprobs": []})
                own["text"] += choice["delta"].get("content") or ""
                own["ids"] += choice.get("token_ids", ())
                own["logprobs"] += [choice["logprobs"]] if choice["logprobs"] else []
                own["finish"] = choice["finish_reason"]
    return found


def test_they_give_the_bytes_of_one_while_one_is_killed(server: Running, programs: Path) -> None:
    expose = ["llm=zoo/counting"]
    targets = ["beam_search", str(programs), "self_consistency"]
    how: dict[str, Any] = {"fixed": ["depth=20"], "defaults": ["width=2"], "expose": expose}
    with running(targets, **how) as one:
        expected = [said(one, body) for body in BODIES]
    with running(targets, **how, cluster="local:2") as door, ThreadPoolExecutor(len(BODIES)) as threads:
        pool = door.session
        assert isinstance(pool, ReplicaPool)
        wait(lambda: pool.counts == (2, 0))
        killed: list[int] = []

        def kill() -> None:
            first = pool.figures[0]
            if not killed and pool.busy(f"{REPLICA_SIGN}{first.name}") > 1:
                killed.append(first.process)
                os.kill(first.process, signal.SIGKILL)

        found = list(threads.map(lambda body: said(door, body, kill), BODIES))
        assert found == expected
        assert (pool.lost, len(killed)) == (1, 1) and pool.resent > 0
        wait(lambda: pool.counts == (2, 0))
        assert door.client.get(f"{door.root}/readyz").json()["replicas"] == {"ready": 2, "loading": 0, "lost": 1}
        told = door.client.get(f"{door.root}/metrics").text
        assert 'qpdsl_replicas{state="ready"} 2.0' in told and "qpdsl_replicas_lost_total 1.0" in told
        assert not any(f"@ {own.name}" in told for own in pool.figures if own.lost)
        slow = {"model": "slow", "stream": True, "progress": True, "messages": BODIES[0]["messages"]}
        with httpx.stream("POST", f"{door.url}/chat/completions", json=slow, timeout=60, trust_env=False) as response:
            wait(lambda: drawn(door) > 0)
            assert response.status_code == 200
        # What nobody waits for is given up in the replica too: it would draw 512 long texts.
        wait(lambda: drawn(door, 0.6) == 0)
        processes = [own.process for own in pool.figures]
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def drawn(server: Running, seconds: float = 0.3) -> float:
    """How many tokens the engines say that they draw in so many seconds."""

    def so_far() -> float:
        told = server.client.get(f"{server.root}/metrics").text
        return sum(map(float, re.findall(r"^qpdsl_engine_decode_tokens_total{.*} (.+)$", told, re.M)))

    before = so_far()
    time.sleep(seconds)
    return so_far() - before


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)
