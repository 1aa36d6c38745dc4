"""Who watches has no head compute what it can leave out, and is told the same tokens."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from qpdsl.executor.events.events import CandidateRecord, Event, Expanded
from qpdsl.executor.kernels.llvm import panel_head
from qpdsl.executor.kernels.llvm.head_screen import HeadScreen
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.session.session import Session
from tests.support.planner.lowered import program_of

PROGRAM = """
model llm = "zoo/counting-mini"

program p(problem: text) -> text {
  chat user=problem
  generate llm n=3 max_tokens=12 temperature=1.0
  BEST
  return step
}
"""


def candidates(best: str, *, screens: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[CandidateRecord], int]:
    """What is told of the samples, and how often a head left out ids."""
    monkeypatch.setattr(panel_head, "_SCREENED_BYTES", 0 if screens else 1 << 60)
    # Heads that other tests have made are none of these.
    monkeypatch.setattr("tests.support.loaded_models._KEPT", defaultdict(list))
    left_out: list[int] = []
    panels = HeadScreen.panels
    monkeypatch.setattr(HeadScreen, "panels", lambda *given: left_out.append(1) or panels(*given))
    plan, session, seen = planned(program_of(PROGRAM.replace("BEST", best)), ()), Session(), list[Event]()
    session.load(plan)
    session.events.subscribe(seen.append, details=True)

    async def main() -> None:
        async with session.running():
            await session.run(plan, {"problem": "2 + 3 * 4"}, 0, "0")

    asyncio.run(main())
    monkeypatch.setattr(HeadScreen, "panels", panels)
    return [one for event in seen if isinstance(event, Expanded) for one in event.candidates], len(left_out)


def test_probabilities_are_told_where_they_take_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = candidates("best by tokens", screens=False, monkeypatch=monkeypatch)
    untold, left_out = candidates("best by tokens", screens=True, monkeypatch=monkeypatch)
    assert left_out and told[0].pieces
    assert [(one.path, one.pieces) for one in untold] == [(one.path, one.pieces) for one in told]
    assert all(one.logprobs for one in told) and not any(one.logprobs for one in untold)
    # A program that reads them has them.
    read, _ = candidates("best by logprob", screens=True, monkeypatch=monkeypatch)
    assert read and {one.path: one.logprobs for one in read}.items() <= {one.path: one.logprobs for one in told}.items()
