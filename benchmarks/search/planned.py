"""One run of a plan over some problems: how long it took, what it answered, what its rules came to."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.peers.peer import Found, Room
from qpdsl.executor.measure.run_meter import RunMeter
from qpdsl.executor.requests import engine_loop
from qpdsl.planner.cost.run_figures import RunFigures, total
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.graders.grader import EqualAnswer, Grader
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.runner import outcomes_of
from qpdsl.session.planning import reads_of
from qpdsl.session.programs import input_path, load_program
from qpdsl.session.session import Session
from qpdsl.session.surroundings import Surroundings

DATA = "counting-500"
_AS_WRITTEN: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Run:
    """`seconds` is wall time, loading aside, `cpu_seconds` what this process had of it; outcomes are in order."""

    seconds: float
    cpu_seconds: float
    figures: RunFigures
    plan: PhysicalPlan
    outcomes: tuple[Outcome, ...]

    @property
    def answers(self) -> list[str]:
        return [str(outcome.answer) for outcome in self.outcomes]

    @property
    def near_ties(self) -> int:
        return sum(outcome.near_ties for outcome in self.outcomes)

    @property
    def right(self) -> float:
        return sum(outcome.correct is True for outcome in self.outcomes) / len(self.outcomes)

    @property
    def tokens(self) -> float:
        """Sampled tokens a problem."""
        return sum(outcome.tokens_out for outcome in self.outcomes) / len(self.outcomes)

    @property
    def cached(self) -> float:
        """The share of all prompt tokens that the prefix cache held."""
        return total(self.plan.ops, self.figures).cached_share or 0.0

    @property
    def computed(self) -> int:
        """Tokens that went through the models."""
        return sum(model.prefill_tokens + model.decode_tokens for model in self.figures.models.values())

    @property
    def read_by_verifiers(self) -> int:
        """Tokens of the texts that verifiers scored, each text whole for each of its scores."""
        scored = [node.id for node in everything(self.plan.ops) if isinstance(node.op, ops.StepScore)]
        return sum(self.figures.operators[id].prompt_tokens for id in scored if id in self.figures.operators)

    def share(self, part: str, whole: str) -> float | None:
        """One count over another, both of the operators at the top, which hold those inside them."""
        top = [self.figures.operators[node.id] for node in self.plan.ops if node.id in self.figures.operators]
        counted = sum(operator.count(whole) for operator in top)
        return sum(operator.count(part) for operator in top) / counted if counted else None


def program(name: str, models: Mapping[str, str] = _AS_WRITTEN) -> LogicalProgram:
    return load_program(name, None, None, Surroundings(models=models))


def plan_of(
    name: str, disabled: Sequence[str] = (), *, naive: bool = False, models: Mapping[str, str] = _AS_WRITTEN
) -> PhysicalPlan:
    """The plan that `qpdsl run` would take, with these `models` in the places of the program's."""
    lowered = program(name, models)
    return planned(lowered, reads_of(lowered), disabled, naive=naive)


def problems(plan: PhysicalPlan, count: int, data: str = DATA) -> list[InputRow]:
    """The first rows of shipped data, or of a file."""
    return list(read_rows(input_path(data), plan, {}).rows[:count])


def run(
    plan: PhysicalPlan,
    rows: Sequence[InputRow],
    in_flight: int | None = None,
    session: Session | None = None,
    grader: Grader | None = None,
) -> Run:
    """Runs a plan over rows in a session of its own, so that every cache is empty, or in the one given.

    Answers are right where they equal the reference, or by the `grader`.
    """
    session = session or Session()
    session.load(plan)
    measuring = RunMeter(session.kv_page_bytes, session.kv_budget)
    session.events.subscribe(measuring.see)
    start, cpu = time.perf_counter(), time.process_time()
    job = Job(plan, None, 0, grader=grader or EqualAnswer())
    outcomes = engine_loop.run(outcomes_of(session, job, rows, in_flight))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return Run(seconds, cpu, measuring.figures(), plan, tuple(outcomes))


class Planned:
    """A program's plan as a side in a process of its own. `options`: "program", and "models" by name."""

    def __init__(self, dtype: str, room: Room, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(room.threads)
        self._plan = plan_of(options["program"], models=options["models"])
        self._dtype = dtype

    def search(self, problems: Sequence[str], own_draws: bool = False) -> Found:
        """Raises RuntimeError where a problem fails."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "problems.jsonl"
            file.write_text("".join(json.dumps({"problem": problem}) + "\n" for problem in problems), encoding="utf-8")
            rows = read_rows(file, self._plan, {}).rows
        session = Session(dtype=self._dtype)
        session.load(self._plan)
        # As a peer's, the memory for keys and values is the process's own before the search: the system has given it.
        arena = session._local.models.arena
        assert arena is not None
        arena.buffer.fill_(0)
        done = run(self._plan, rows, session=session)
        for outcome in done.outcomes:
            if outcome.error is not None:
                raise RuntimeError(outcome.error)
        sampled = sum(outcome.tokens_out for outcome in done.outcomes)
        return Found(done.seconds, done.cpu_seconds, done.answers, sampled, computed=done.computed)
