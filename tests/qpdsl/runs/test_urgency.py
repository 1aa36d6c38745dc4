"""Deadlines and priorities of programs and rows: who goes first, with the same tokens."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.cli.exits import Exit
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.request import Client, Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.session.session import Session
from tests.support.cli import Run, write_rows
from tests.support.executor.programs import HEADER, compiled

STAGES = "chat user=problem | generate llm n=2 temperature=0.9 max_tokens=12 | best by logprob"
PLAIN = f"{HEADER}program p(problem: text) -> text {{ {STAGES} }}"
DUE = PLAIN.replace("-> text", "-> text within deadline(50s)")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.qp"
    path.write_text(DUE)
    return path


class Seen:
    """An engine before another one, which notes who asks."""

    def __init__(self, engine: Engine, clients: list[Client]) -> None:
        self._engine, self._clients = engine, clients

    def submit(self, model: str, request: Request) -> Ticket:
        self._clients.append(request.client)
        return self._engine.submit(model, request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_the_engine_is_told_who_asks_and_by_when() -> None:
    session, clients, begun = Session(), list[Client](), time.monotonic()
    plans = [compiled(PLAIN), compiled(DUE)]
    for plan in plans:
        session.load(plan)

    async def main() -> list[list[str]]:
        found = []
        async with session.running():
            for plan in plans:
                for priority in (0, 3):
                    result = await session.run(plan, {"problem": "Mia has 3 eggs."}, priority=priority, through=through)
                    found.append([row.generated.text for row in result.rows])
        return found

    def through(engine: Engine) -> Engine:
        return Seen(engine, clients)  # type: ignore[return-value]

    found = asyncio.run(main())
    assert all(texts == found[0] for texts in found)
    assert {client.urgency for client in clients} == {0, -3}
    deadlines = {client.deadline for client in clients}
    assert None in deadlines and len(deadlines) == 3
    assert all(begun + 50 <= due <= time.monotonic() + 50 for due in deadlines if due is not None)


def test_rows_go_by_priority_and_come_in_their_order(qpdsl: Run, program: Path, tmp_path: Path) -> None:
    rows = [{"id": f"row {at}", "problem": f"Mia has {at} eggs.", "p": own} for at, own in enumerate((2, 0, 1, 0))]
    input, trace = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "run.jsonl"
    args = ("run", program, "--input", input, "--concurrency", 1, "--no-greedy")
    plain, ran = qpdsl(*args), qpdsl(*args, "--priority", "p", "--trace", trace)
    assert ran.code == Exit.OK and ran.out == plain.out
    events = [json.loads(line) for line in trace.read_text("utf-8").splitlines()[1:]]
    begun = [event["instance"] for event in events if event["kind"] == "InstanceStarted"]
    assert begun == ["row 1", "row 3", "row 2", "row 0"]
    refused = qpdsl(*args, "--priority", "problem")
    assert refused.code == Exit.USAGE and "row `row 0` has no whole number in `problem`" in refused.err


def test_explain_tells_the_deadline_and_analyze_how_many_were_kept(qpdsl: Run, program: Path) -> None:
    assert "within deadline(50s)" in qpdsl("explain", program).out
    analyzed = ("explain", program, "--analyze", "--set", "problem=Mia has 3 eggs.")
    assert "1 of 1 deadline kept" in qpdsl(*analyzed).out
    program.write_text(DUE.replace("50", "0.000001"))
    assert "0 of 1 deadline kept" in qpdsl(*analyzed).out
    assert json.loads(qpdsl(*analyzed, "--format", "json").out)["measured"]["deadlines"] == {"kept": 0, "of": 1}
    program.write_text(PLAIN)
    assert "deadline" not in qpdsl(*analyzed).out


def test_python_says_both() -> None:
    model = qp.model("zoo/counting")

    @qp.program(deadline=50)
    def due(problem: str) -> str:
        rows = qp.chat(user=problem)
        rows.generate(model, max_tokens=8)
        return rows  # type: ignore[return-value]

    assert due.logical.deadline == 50 and "within deadline(50s)" in str(due)
    with qp.using(priority=2):
        assert due("Mia has 3 eggs.") == due.using(priority=-1)("Mia has 3 eggs.")
    with pytest.raises(qp.ArgumentError, match="`priority` takes a whole number"):
        due.using(priority=1.5)  # type: ignore[arg-type]

    def late(problem: str) -> str:
        rows = qp.chat(user=problem)
        rows.generate(model)
        return rows  # type: ignore[return-value]

    with pytest.raises(qp.QpError, match="over 0"):
        qp.program(deadline=0)(late)
