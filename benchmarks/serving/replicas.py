"""Replicas behind one door against one process: the same answers under the same load, with one replica killed in it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving.servers import Absent, Server, running

_SECONDS_BETWEEN_LOOKS = 0.1
Ask = Callable[[str], list[dict[str, Any]]]


@dataclass(frozen=True)
class Compared:
    """Of so many requests those whose answers were equal, and what became of replicas by the server's own count."""

    requests: int
    equal: int
    ready: int
    lost: int
    resent: int

    def words(self) -> str:
        """For people: one line."""
        same = f"{self.equal} of {self.requests} answers equal those of one process"
        return f"{same}; {self.ready} replicas ready, {self.lost} lost, {self.resent} requests asked again"


def compared(
    one: Server, many: Server, replicas: int, cores: set[int], scratch: Path, ask: Ask, *, kill: bool
) -> Compared:
    """Asks both servers the same by `ask`, one after the other; with `kill` one of the replicas is killed when a
    quarter of the answers are there."""
    with running(one, cores, scratch / "one.log") as (url, _):
        expected = ask(url)
    with running(many, cores, scratch / "many.log") as (url, process):
        _await(lambda: _figure(url, 'qpdsl_replicas{state="ready"}') == replicas)
        killer = threading.Thread(target=_kill_one, args=(url, process.pid, len(expected)), daemon=True)
        if kill:
            killer.start()
        found = ask(url)
        if kill:
            killer.join()
            _await(lambda: _figure(url, 'qpdsl_replicas{state="ready"}') == replicas)
        names = ('qpdsl_replicas{state="ready"}', "qpdsl_replicas_lost_total", "qpdsl_requests_resent_total")
        ready, lost, resent = (int(_figure(url, name)) for name in names)
    equal = sum(_said(a) == _said(b) for a, b in zip(expected, found, strict=True))
    return Compared(len(expected), equal, ready, lost, resent)


def _said(answer: dict[str, Any]) -> tuple[str, int, str | None]:
    return answer["text"], answer["tokens"], answer["error"]


def _kill_one(url: str, server: int, requests: int) -> None:
    _await(lambda: _figure(url, "qpdsl_requests_total") >= requests / 4)
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    replicas = [int(child) for child in children if b"replica_process" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(replicas[0], signal.SIGKILL)


def _figure(url: str, name: str) -> float:
    """The sum of a metric of the server."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as told:
        text = told.read().decode()
    return sum(map(float, re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))


def _await(until: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            raise Absent("the replicas did not become ready")
        time.sleep(_SECONDS_BETWEEN_LOOKS)
