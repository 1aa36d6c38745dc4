"""Rows whose prompts begin alike start one after another: they meet in the cache, and nothing else changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.engine import scheduler
from qpdsl.executor.events.events import EngineStepped, Event, InstanceStarted
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan as naive
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.runner import outcomes_of
from qpdsl.runs.start_order import together
from qpdsl.session.session import Session
from tests.support.executor.programs import HEADER
from tests.support.planner.lowered import program_of

STAGES = "generate llm n=2 temperature=0.8 max_tokens=6\n  best by logprob"
PROGRAM = (
    f"{HEADER}program p(question: text, document: text) -> text {{\n"
    f'  chat user="{{document}} {{question}}"\n  {STAGES}\n}}'
)
DOCUMENTS, QUESTIONS = 5, 4


def run(plan: PhysicalPlan) -> tuple[list[str | None], list[str], float]:
    """The answers, the rows in the order in which they started, and the share of the prompts that was cached.

    There is memory for the prompts of two or three documents.
    """
    session = Session(kv_bytes=2 << 20)
    session.load(plan)
    started: list[str] = []
    cached = computed = 0

    def see(event: Event) -> None:
        nonlocal cached, computed
        if isinstance(event, InstanceStarted):
            started.append(event.instance)
        if isinstance(event, EngineStepped):
            computed += event.report.prefill_tokens
            cached = event.report.cached_tokens  # type: ignore[union-attr]

    session.events.subscribe(see)
    rows = [
        InputRow(f"{document}.{question}", {"document": f"{document} eggs. " * 80, "question": f"{question}?"})
        for question in range(QUESTIONS)
        for document in range(DOCUMENTS)
    ]

    async def main() -> list[str | None]:
        return [outcome.answer for outcome in await outcomes_of(session, Job(plan, None, 0), rows, 4)]

    answers = asyncio.run(main())
    return answers, started, cached / (cached + computed)


def test_rows_of_one_document_meet_in_the_cache() -> None:
    plan = optimize(naive(program_of(PROGRAM))).plan
    assert plan.prompted == ("document", "question")
    plain, order, seldom = run(replace(plan, prompted=()))
    assert order == [f"{document}.{question}" for question in range(QUESTIONS) for document in range(DOCUMENTS)]
    answers, order, often = run(plan)
    assert answers == plain
    assert [name.partition(".")[0] for name in order] == [str(at) for at in range(DOCUMENTS) for _ in range(QUESTIONS)]
    # Of four questions about a document the last three find it.
    assert often > 0.7 and often > 2 * seldom


MIX = (
    "generate llm n=2 temperature=0.8 max_tokens=6\n  best by logprob",
    "generate llm n=4 temperature=1 max_tokens=8\n  vote text",
    "generate llm max_tokens=12",
    "repeat 2 { generate llm n=2 temperature=0.7 max_tokens=5\n  keep 1 by logprob }",
)


def test_programs_that_run_at_once_meet_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine admits what finds the longest prefix, of the requests that have waited longest."""
    plans = [optimize(naive(program_of(PROGRAM.replace(STAGES, stages)))).plan for stages in MIX]

    def mixed() -> tuple[list[object], float]:
        session = Session(kv_bytes=2 << 20, max_sequences=16)
        for plan in plans:
            session.load(plan)

        async def main() -> list[object]:
            runs = [
                session.run(plan, {"document": f"{document} eggs. " * 80, "question": f"{question}?"}, name=str(at))
                for question in range(3)
                for document in range(DOCUMENTS)
                for at, plan in enumerate(plans)
            ]
            async with session.running():
                return [result.value for result in await asyncio.gather(*runs)]

        steps: list[tuple[int, int]] = []

        def see(event: Event) -> None:
            if isinstance(event, EngineStepped):
                steps.append((event.report.prefill_tokens, event.report.cached_tokens))  # type: ignore[union-attr]

        session.events.subscribe(see)
        values, computed = asyncio.run(main()), sum(own for own, _ in steps)
        return values, steps[-1][1] / (steps[-1][1] + computed)

    values, found = mixed()
    monkeypatch.setattr(scheduler, "_WINDOW", 1)
    in_turn, seldom = mixed()
    assert values == in_turn
    assert found > 0.7 and found > seldom + 0.1


def test_without_shared_prefixes_there_is_nothing_to_meet() -> None:
    assert optimize(naive(program_of(PROGRAM)), ["share_prefixes"]).plan.prompted == ()


TEXTS = st.lists(st.lists(st.sampled_from("ab"), max_size=4).map(lambda parts: "".join(part * 300 for part in parts)))


@given(TEXTS)
def test_every_row_once_and_texts_that_begin_alike_are_neighbours(texts: list[str]) -> None:
    order = together([(text, place) for place, text in enumerate(texts)])
    assert sorted(order) == list(range(len(texts)))
    # Beyond what all have in common.
    ends = (min(texts, default=""), max(texts, default=""))
    length = 300 + max((at for at in range(len(ends[0]) + 1) if ends[1].startswith(ends[0][:at])), default=0)
    starts = [texts[place][:length] for place in order if len(texts[place]) >= length]
    assert len(list(groupby(starts))) == len(set(starts))


@given(st.lists(st.text(max_size=200)))
def test_short_texts_stay_where_they_are(texts: list[str]) -> None:
    assert together([(text, place) for place, text in enumerate(texts)]) == list(range(len(texts)))
