"""Eight hours' worth of requests to our server: do memory, files, sockets or tasks grow?

    python -m benchmarks.serving.soak [--requests 288000] [--quick]

288,000 requests are ten a second for eight hours; they are asked as fast as they are answered. Most go to a bare model
whose engine is a stub that answers at once, so that nearly all of the time is the server's; one in twenty is a program
on the real engine. Streamed and whole answers, chats and completions, mistakes, and clients that go away in the middle
come in turn. The server is this process and the client another, which is a new one for each portion; after each
portion, when all connections are closed, what the server holds is counted. The first fifth of the portions warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from benchmarks.common.folders import RESULTS, ROOT
from benchmarks.common.results import Goal, goal_table, machine_line, write
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import GenerateRequest, Request, Sample
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.serve.http.routes import Limits, ServerApp
from qpdsl.serve.offered_models import bare_plan, offered_programs
from qpdsl.serve.passthrough_model import PassthroughModel
from qpdsl.serve.served_program import ServedProgram
from qpdsl.session.prepare import PlanUse, prepare
from qpdsl.session.session import Session
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings

_MODEL = "zoo/counting"
_PROGRAM = ROOT / "benchmarks" / "serving" / "answer.qp"
_REQUESTS, _PORTION, _CLIENTS = 288_000, 2_400, 32
_QUICK_REQUESTS, _QUICK_PORTION = 4_000, 400
_WARM_UP = 0.2
# As `qpdsl serve` does: what happened long ago is forgotten.
_HISTORY = 256
# What a heap may be larger by, of what the process held after it was warm.
_MAX_GROWTH = 0.02
_SECONDS_TO_CLOSE = 10.0


class StubEngine:
    """An `Engine` that answers with the tokens of the prompt, as many as may be, one in each turn of the event loop."""

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(frozenset({"sampling", "seeds", "logprobs"}))

    def submit(self, model: str, request: Request) -> Ticket:
        assert isinstance(request, GenerateRequest)
        answer = _StubAnswer(request)
        asyncio.get_running_loop().call_soon(answer.step)
        return answer.ticket

    def busy(self, model: str) -> int:
        return 0

    async def drive(self) -> None:
        await asyncio.Event().wait()


class _StubAnswer:
    """The answer to one request, which gets longer."""

    def __init__(self, request: GenerateRequest) -> None:
        self.ticket = Ticket(request, self._cancel)
        self._tokens = request.prompt[: request.max_tokens]
        self._watches = [request.watch(index) if request.watch else None for index in range(len(request.keys))]
        self._place = 0
        self._cancelled = False

    def step(self) -> None:
        if self._cancelled:
            return
        for watch in self._watches:
            if watch is not None:
                watch.push(self._tokens[self._place])
        self._place += 1
        if self._place < len(self._tokens):
            asyncio.get_running_loop().call_soon(self.step)
            return
        logprobs = (-0.1,) * len(self._tokens)
        for index in range(len(self._watches)):
            self.ticket.finish_sample(index, Sample(self._tokens, "length", sum(logprobs), 0, logprobs=logprobs), 0)

    def _cancel(self, ticket: Ticket) -> None:
        self._cancelled = True


@dataclass(frozen=True)
class Held:
    """What the server holds between two portions: bytes of memory, open files and sockets, tasks, objects."""

    bytes: int
    files: int
    tasks: int
    objects: int


def held() -> Held:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), files, len(asyncio.all_tasks()), len(gc.get_objects()))


def portion(number: int, size: int) -> list[tuple[str, dict[str, Any]]]:
    """Requests of every kind: the path and the body of each."""
    requests: list[tuple[str, dict[str, Any]]] = []
    for index in range(size):
        seed = number * size + index
        chat = {"model": "bare", "messages": [{"role": "user", "content": f"question {seed}"}], "max_tokens": 12}
        text = {"model": "bare", "prompt": f"text {seed}", "max_tokens": 12, "seed": seed}
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("/v1/chat/completions", {**chat, "stream": True}),
            ("/v1/completions", {**text, "stream": True, "stream_options": {"include_usage": True}, "stop": ["t 1"]}),
            ("/v1/chat/completions", chat),
            ("/v1/completions", {**text, "n": 3, "logprobs": 0}),
            ("/v1/chat/completions", {**chat, "stream": True, "leave_after": 2}),
            ("/v1/completions", {**text, "temprature": 1}),
            ("/v1/completions", {**text, "model": "none"}),
        ]
        if index % 20 == 0:
            path, body = "/v1/chat/completions", {**chat, "model": "answer", "stream": index % 40 == 0}
        else:
            path, body = kinds[index % len(kinds)]
        requests.append((path, body))
    return requests


async def ask(url: str, requests: list[tuple[str, dict[str, Any]]]) -> dict[str, int]:
    """Asks them all from a new process, by path; returns how many were answered, and how many were refused."""
    counts = {"answered": 0, "refused": 0}
    for path in sorted({path for path, _ in requests}):
        bodies = [body for own, body in requests if own == path]
        spec = json.dumps({"url": url, "path": path, "bodies": bodies, "clients": _CLIENTS}).encode()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.serving.client"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        said, _ = await process.communicate(spec)
        for answer, body in zip(json.loads(said)["answers"], bodies, strict=True):
            is_wrong = "temprature" in body or body["model"] == "none"
            if bool(answer["error"]) != is_wrong or (is_wrong and "HTTPError: 40" not in answer["error"]):
                raise SystemExit(f"{path} {body} was answered wrongly: {answer}")
            counts["refused" if is_wrong else "answered"] += 1
    return counts


async def soak(total: int, size: int) -> tuple[list[Held], dict[str, int], float]:
    """What the server holds after each portion, how requests ended, and the seconds that all took."""
    settings = Settings(kv_bytes="8MiB")
    (offered,) = offered_programs(settings, [str(_PROGRAM)], Surroundings())
    plan = prepare(offered.bound, settings, PlanUse(text=True)).plan
    session = Session.of(settings, events=EventStream(_HISTORY, _HISTORY))
    session.load(plan)
    session.load(bare_plan(_MODEL))
    models = [
        ServedProgram(offered.name, plan, session),
        PassthroughModel("bare", session.text_model(_MODEL), StubEngine(), "stub"),
    ]
    faults: list[Exception] = []
    app = ServerApp(models, Limits(running=_CLIENTS), None, faults.append)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", access_log=False))
        async with session.running():
            serving = asyncio.create_task(server.serve([bound]))
            while not server.started:
                await asyncio.sleep(0.05)
            found, counts = [], {"answered": 0, "refused": 0}
            start = time.perf_counter()
            for number in range(-(-total // size)):
                for name, count in (await ask(url, portion(number, size))).items():
                    counts[name] += count
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SECONDS_TO_CLOSE):
                        while server.server_state.connections:
                            await asyncio.sleep(0.05)
                await asyncio.sleep(0.1)
                found.append(held())
            seconds = time.perf_counter() - start
            server.should_exit = True
            await serving
    if faults:
        raise SystemExit(f"{len(faults)} faults in the server, the first: {faults[0]!r}")
    return found, counts, seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=_REQUESTS)
    options.add_argument("--quick", action="store_true", help="few requests: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    total, size = (_QUICK_REQUESTS, _QUICK_PORTION) if arguments.quick else (arguments.requests, _PORTION)
    found, counts, seconds = asyncio.run(soak(total, size))
    first, last = found[int(_WARM_UP * len(found))], found[-1]
    goals = [
        Goal("memory after it was warm over that at the end", 1 - _MAX_GROWTH, first.bytes / last.bytes),
        Goal("objects after it was warm over those at the end", 1 - _MAX_GROWTH, first.objects / last.objects),
        Goal("files and sockets after it was warm less those at the end", 0, first.files - last.files),
        Goal("tasks after it was warm less those at the end", 0, first.tasks - last.tasks),
    ]
    lines = ["| requests | memory | files and sockets | tasks | objects |", "|---:|---:|---:|---:|---:|"]
    for place in sorted({0, *(len(found) * tenth // 10 for tenth in range(1, 10)), len(found) - 1}):
        one = found[place]
        cells = f"{one.bytes / 2**20:.1f} MiB | {one.files} | {one.tasks} | {one.objects:,}"
        lines.append(f"| {min(total, (place + 1) * size):,} | {cells} |")
    hours = total / 36_000
    text = (
        f"# {total:,} requests to our server, which are {hours:.1f} hours of ten a second\n\n"
        + "\n".join(lines)
        + f"\n\n{goal_table(goals)}\n\nIt took {seconds:,.0f} s. {counts['answered']:,} requests were answered, or "
        f"left by their clients on purpose, and {counts['refused']:,} refused as they should be.\n\n{machine_line()}\n"
    )
    record = {"requests": total, "seconds": round(seconds, 1), **counts, "held": [vars(one) for one in found]}
    write(arguments.output, "serving_soak", text, record, goals)


if __name__ == "__main__":
    main()
