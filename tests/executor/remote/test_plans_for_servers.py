"""What the planner decides about servers, carried out against one: the same tokens, and what was wanted of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.runner import outcomes_of
from qpdsl.session.planning import with_servers
from qpdsl.session.session import Session
from tests.support.executor.programs import run_all, texts
from tests.support.planner.lowered import program_of
from tests.support.remote.stub_server import StubServer, stub
from tests.support.user_cache import own_cache

STEPS = """
  chat user=problem
  generate llm temperature=0 stop="\\n" max_tokens=30
  say "Job:"
  generate llm temperature=0 stop="\\n" max_tokens=30
  return text
"""


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out about another server on the same port is not kept."""
    own_cache(tmp_path / "cache", monkeypatch)


def naive_of(server: StubServer, stages: str) -> PhysicalPlan:
    """The naive plan, with what the server was found to do."""
    model = f"vllm:{server.url}#{server.model} tokenizer=zoo/counting"
    naive = plan(program_of(f'model llm = "{model}"\nprogram p(problem: text) -> text {{{stages}}}'), ())
    Session(threads=1, completions="none").load(naive)
    return with_servers(naive)


def ran(physical: PhysicalPlan, server: StubServer, rows: int = 2) -> tuple[list[InstanceResult], Counter[str], int]:
    """The results on a few problems, what was counted, and how many requests the server got for them."""
    session = Session(threads=1, completions="none")
    session.load(physical)
    before = server.counts.requests
    results = run_all(physical, [{"problem": text} for text in texts(rows)], seed=1, session=session)
    assert [result.error for result in results] == [None] * rows
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    return results, counts, server.counts.requests - before


def tokens(results: list[InstanceResult]) -> list[object]:
    return [(result.value, [(row.path, row.generated.tokens) for row in result.rows]) for result in results]


def test_the_first_sample_of_a_prompt_has_it_cached_for_the_others() -> None:
    with stub("vllm") as server:
        naive = naive_of(server, "chat user=problem\n generate llm n=6 temperature=0.9 max_tokens=12\n vote text")
        optimized = optimize(naive)
        assert "prefix_first" in optimized.plan.rules
        server.pace = 0.02
        expected, _, _ = ran(optimize(naive, ["prefix_first"]).plan, server)
        server.restart()
        before = server.counts.reused
        results, counts, requests = ran(optimized.plan, server)
        assert tokens(results) == tokens(expected)
        assert requests == counts["requests"] == 12
        assert server.counts.reused - before == 10


def test_calls_are_saved_where_the_model_writes_what_the_program_says() -> None:
    def writes(prompt: str, seed: int) -> str:
        return " baker\nAge: 31\n" if prompt.rstrip().endswith("Job:") else "Ann\nJob: baker\nAge: 31\n"

    with stub("vllm") as server:
        naive = naive_of(server, STEPS)
        optimized = optimize(naive).plan
        assert "speculative_calls" in optimized.rules
        server.writes = writes
        expected, _, straight = ran(naive, server)
        results, counts, requests = ran(optimized, server)
        assert tokens(results) == tokens(expected)
        assert results[0].value == "Ann\nJob: baker\n"
        assert (straight, requests, counts["saved_calls"]) == (4, 2, 2)
        assert counts["requests"] == 2 and counts["beyond_tokens"] > counts["beyond_used"] > 0
        server.writes = lambda prompt, seed: "Ann\nTown: Ulm\n" if "Job:" not in prompt else " cook\n"
        expected, _, _ = ran(naive, server)
        results, counts, requests = ran(optimized, server)
        assert tokens(results) == tokens(expected) and requests == 4 and not counts["saved_calls"]


def test_samples_that_a_vote_gives_up_are_closed_at_the_server() -> None:
    long = " and so on" * 60

    def writes(prompt: str, seed: int) -> str:
        return "The answer is 4." if seed % 4 else f"Well{long}. The answer is 5."

    with stub("vllm") as server:
        stages = """
  chat user=problem
  generate llm n=12 temperature=0.9
  extract answer = /The answer is (-?\\d+)/
  vote answer
  return answer
"""
        naive = naive_of(server, stages)
        optimized = optimize(naive).plan
        assert "decided_vote" in optimized.rules
        server.writes, server.pace = writes, 0.005
        before = server.counts.drawn
        results, counts, _ = ran(optimized, server, rows=1)
        assert results[0].value == "4" and counts["given_up"] > 0
        # It sees at its next token that nobody listens any more.
        deadline = time.monotonic() + 20
        while server.counts.serving and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.counts.aborted > 0 and server.counts.serving == 0
        # Those that were given up are the long ones, of which nearly nothing was written.
        assert server.counts.drawn - before < 180 * counts["given_up"]


def test_rows_start_as_others_leave_room_at_a_server() -> None:
    """Nothing steps here: rows that wait hear of requests that have ended."""
    with stub("vllm") as server:
        physical = replace(naive_of(server, "chat user=problem\n generate llm max_tokens=300"), in_flight=8, floor=3)
        session = Session(threads=1, completions="none")
        session.load(physical)
        # The first row is the longest by far, and the others go on beside it.
        server.writes = lambda prompt, seed: "no." * (200 if texts(1)[0] in prompt else 1)
        server.pace = 0.002
        ended: list[int] = []
        rows = [InputRow(str(number), {"problem": text}) for number, text in enumerate(texts(8))]
        job = Job(physical, None, 0, with_rows=False)
        asyncio.run(outcomes_of(session, job, rows, done=lambda row: ended.append(row.number)))
        assert sorted(ended) == list(range(8)) and ended[-1] == 0
