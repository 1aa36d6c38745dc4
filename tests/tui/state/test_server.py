"""A model on a server on the Engine screen and in the first line: what is there, what waits, and what it took."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.executor.events.events import ModelsLoaded, RunEnded, RunStarted, ServerReported
from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.tui.state.run_state import RunState
from tests.support.cli import Run
from tests.support.remote.stub_server import stub
from tests.support.tui.screen import dashboard, press
from tests.support.tui.traces import write
from tests.support.user_cache import own_cache

MODEL = "vllm:http://127.0.0.1:8000/v1#m"
WAITING = ServerReported(
    at=12.0,
    model=MODEL,
    in_flight=3,
    limit=8,
    queued=5,
    requests=40,
    retries=2,
    replayed=1,
    prompt_tokens=900,
    cached_tokens=90,
    sampled_tokens=1500,
    cost=0.25,
    again=4,
    why="http://127.0.0.1:8000/v1 answers 429: too many",
    failing=2.0,
    resumes=6.0,
)
SENT = ServerReported(
    at=8.0, model=MODEL, in_flight=8, limit=8, queued=9, requests=0, retries=0, replayed=0, sampled_tokens=0
)


def screens(folder: Path, *reports: ServerReported, ended: bool = False, now: float = 14.0) -> list[str]:
    """The first line and the Engine screen."""
    how = {"seed": 0, "device": "cpu", "concurrency": 1, "pid": 1, "wall": 0.0, "version": "0"}
    begun = RunStarted(at=0.0, program="p", plan={"program": "p", "operators": []}, rows=9, **how)  # type: ignore[arg-type]
    last = RunEnded(at=now, status="done") if ended else ModelsLoaded(at=now, models=(), seconds=1.0)
    path = write(folder / "run.jsonl", [begun, ModelsLoaded(at=0.1, models=(), seconds=0.1), *reports, last])

    async def main() -> list[str]:
        async with dashboard(path, (120, 30)) as pilot:
            return (await press(pilot, "4")).splitlines()

    return asyncio.run(main())


def test_its_panel_says_what_waits_for_what_and_since_when(tmp_path: Path) -> None:
    head, *panel = screens(tmp_path, SENT, WAITING)
    assert re.search(r" [1-9]\d* tok/s", head)
    shown = "\n".join(panel)
    # 1,500 tokens came in the last five seconds.
    assert "300 tok/s" in head and "4 to be sent again" in head
    for words in (
        MODEL,
        "3 of 8, at most 8",
        "5 for their turn",
        "40, 1 replayed",
        "4, failing for 4.0 s",
        "next in 4.0 s",
        "429: too many",
        "900 in, 1,500 out",
        "10% of it",
        "0.25",
        "sampled tok/s",
        "in flight",
    ):
        assert words in shown, words


def test_after_the_run_and_once_it_was_answered_nothing_waits(tmp_path: Path) -> None:
    for reports, ended in (
        ((SENT, WAITING), True),
        ((SENT, WAITING, replace(WAITING, at=13.0, again=0, why=None)), False),
    ):
        shown = "\n".join(screens(tmp_path, *reports, ended=ended))
        assert "sent again" in shown and "to be sent again" not in shown and "429" not in shown


def test_without_a_model_the_screen_says_so(tmp_path: Path) -> None:
    assert "no model has been asked yet" in "\n".join(screens(tmp_path))


def test_what_is_told_of_a_server_that_fails_is_what_the_summary_says(
    tmp_path: Path, qpdsl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    program, trace = tmp_path / "p.qp", tmp_path / "run.trace"
    program.write_text(
        'model llm = "zoo/counting"\n\n'
        "program p(problem: text) -> text {\n  chat user=problem\n  generate llm n=4 max_tokens=8\n  return text\n}\n",
        "utf-8",
    )
    with stub("vllm") as server:
        asked = ("run", program, "--model", f"llm=vllm:{server.url}#{server.model}", "--input", "counting-500")
        asked = (*asked, "--no-greedy", "--json", "--output", tmp_path / "out.jsonl", "--overwrite")
        # The server is known then.
        assert qpdsl(*asked, "--limit", 1).code == 0
        server.fail("too_many", 2)
        ran = qpdsl(*asked, "--limit", 3, "--seed", 7, "--trace", trace)
    assert ran.code == 0, ran.err
    state, waits = RunState(), []
    for event in read_trace(trace, LineReader()):
        state.add(event)
        waits += [event.why] if isinstance(event, ServerReported) and event.again else []
    (told,) = state.servers.values()
    assert waits and "429" in str(waits[0])
    (summary,) = ran.records
    latest, servers = told.latest, summary["servers"]
    assert (latest.requests, latest.retries) == (servers["requests"], servers["retries"]) == (14, 2)
    assert latest.sampled_tokens == summary["tokens_out"] and latest.prompt_tokens == summary["tokens_in"]
    totals = [state.totals(line.id) for line in state.plan.lines if line.operator == "Generate"]  # type: ignore[union-attr]
    assert sum(one.counts["requests"] for one in totals) == latest.requests
