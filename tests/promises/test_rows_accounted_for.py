"""The promise that every row of the input ends in exactly one record, whatever the user's functions do."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qpdsl as qp
from qpdsl.executor.runtime.instance import user_code
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.names.modules import Environment
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.evaluation import CellFigures
from qpdsl.runs.graders.grader import EqualAnswer, Grade
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome, outcome
from qpdsl.runs.runner import outcomes_of
from qpdsl.runs.store.run_record import RowRecord, Totals
from qpdsl.runs.summary import Summary
from qpdsl.session.session import Session
from tests.support.cli import Run, write_rows
from tests.support.executor.programs import compiled
from tests.support.forked import Forks

HEAD = """
model llm = "zoo/counting-mini"
program p(problem: text) -> text {
  chat user=problem
  generate llm n=2 temperature=0.9 max_tokens=6
"""
SCORED = HEAD + "score f\nbest by score\nreturn text\n}"
EXTRACTED = HEAD + "extract x = f\nreturn text\n}"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class AnyError(BaseException):
    pass


class NoFloat(float):
    def __float__(self) -> float:
        raise SystemExit(7)


class NoItem:
    def __getattr__(self, name: str) -> Any:
        raise GeneratorExit


async def _never_awaited() -> float:
    return 1.0


RAISED: Mapping[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "ExceptionGroup": lambda: BaseExceptionGroup("all of it", [KeyboardInterrupt(), ValueError()]),
    "UnprintableError": UnprintableError,
    "AnyError": AnyError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "TimeoutError": TimeoutError,
    "surrogates": lambda: ValueError("\ud800"),
    "long": lambda: ValueError("x" * 10**6),
}
RETURNED: Mapping[str, Callable[[], Any]] = {
    "an array": lambda: np.zeros(3),
    "a tensor": lambda: torch.zeros(2, 2),
    "nan": lambda: float("nan"),
    "inf": lambda: -float("inf"),
    "surrogates": lambda: "\ud800",
    "huge": lambda: 10**5000,
    "bool": lambda: True,
    "a list": lambda: [1.0],
    "NoFloat": lambda: NoFloat(1),
    "NoItem": NoItem,
    "a class": lambda: PythonFunction,
}
FINE: Mapping[str, Callable[[], Any]] = {
    "1.0": lambda: 1.0,
    "numpy": lambda: np.float32(1),
    "an array of one": lambda: np.ones(1),
    "a tensor of one": lambda: torch.ones(1),
    "int": lambda: 1,
}
SHAPES = ("plain", "async", "batched", "async batched")


def _does(what: str) -> Any:
    """Does one of the above, which `raise`, `return` and `fine` tell apart."""
    kind, name = what.split(" ", 1)
    if kind == "raise":
        raise RAISED[name]()
    return (RETURNED if kind == "return" else FINE)[name]()


def function(shape: str, kind: Any, plan: Mapping[str, str]) -> PythonFunction:
    """A function that does with each problem what the plan says."""

    def plain(problem: str) -> Any:
        return _does(plan[problem])

    def batched(problems: Sequence[str]) -> Any:
        return [_does(plan[problem]) for problem in problems]

    async def later(problem: str) -> Any:
        await asyncio.sleep(0)
        return _does(plan[problem])

    async def batched_later(problems: Sequence[str]) -> Any:
        return batched(problems)

    call: Callable[..., Any] = dict(zip(SHAPES, (plain, later, batched, batched_later), strict=True))[shape]
    return PythonFunction(
        "f", call, "all" if "batched" in shape else "one", kind, "float" if kind == "extractor" else "text"
    )


def job(kind: str, timeout: float | None = None) -> Job:
    scorer = kind == "scorer"
    environment = Environment(scorers=frozenset({"f"})) if scorer else Environment(extractors={"f": "float"})
    return Job(compiled(SCORED if scorer else EXTRACTED, environment), None, seed=3, row_timeout=timeout)


def ran(f: PythonFunction, plan: Mapping[str, str], concurrency: int, timeout: float | None = None) -> list[Outcome]:
    """The outcomes of the rows of a plan, in the order of the rows; each row has exactly one."""
    session = Session(functions=[f])
    todo = job(f.kind, timeout)
    session.load(todo.plan)
    outcomes: list[tuple[int, Outcome]] = []
    rows = [InputRow(str(number), {"problem": problem}) for number, problem in enumerate(plan)]
    asyncio.run(
        asyncio.wait_for(
            outcomes_of(session, todo, rows, concurrency, lambda row: outcomes.append((row.number, row.outcome))), 60
        )
    )
    assert sorted(number for number, _ in outcomes) == list(range(len(plan)))
    assert session.busy == 0
    session._local.check_integrity()
    return [told for _, told in sorted(outcomes, key=lambda done: done[0])]


def problems(count: int) -> list[str]:
    return [f"Mia has {number} boxes." for number in range(count)]


@pytest.mark.parametrize("kind", ["scorer", "extractor"])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_ends_in_one_record_whatever_a_function_raises_or_gives(shape: str, kind: str) -> None:
    """Every fault once, in random company and order; the rows without one are as in a run without any."""
    draw = random.Random(f"{shape} {kind}")
    faults = [f"raise {name}" for name in RAISED] + [f"return {name}" for name in RETURNED]
    done = [*faults, *(f"fine {name}" for name in FINE), *["fine 1.0"] * 3]
    draw.shuffle(done)
    plan = dict(zip(problems(len(done)), done, strict=True))
    outcomes = ran(function(shape, kind, plan), plan, draw.choice((1, 4, 40)))
    right = ran(function(shape, kind, dict.fromkeys(plan, "fine 1.0")), plan, 8)
    for what, told, undisturbed in zip(plan.values(), outcomes, right, strict=True):
        assert (told.error is None) == what.startswith("fine"), (what, told.error)
        if told.error is None:
            assert (told.answer, told.tokens_out) == (undisturbed.answer, undisturbed.tokens_out)
        else:
            assert "`f`" in told.error and len(told.error) < 700
            json.dumps(told.record(timing=False)).encode()


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What functions that hang wait for; they are let go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("shape", ["plain", "async", "async that blocks"])
def test_a_function_that_hangs_costs_its_row(
    shape: str, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row times out, its memory is free again, and the others are as they would be without it."""
    monkeypatch.setattr(user_code, "_PATIENCE", 0.2)

    def plain(problem: str) -> float:
        return 1.0 if problem != "Mia has 2 boxes." else held.wait()

    async def later(problem: str) -> float:
        while problem == "Mia has 2 boxes.":
            await asyncio.sleep(0.01)
        return 1.0

    async def blocking(problem: str) -> float:
        return plain(problem)

    call: Any = {"plain": plain, "async": later, "async that blocks": blocking}[shape]
    plan = dict.fromkeys(problems(6), "fine 1.0")
    outcomes = ran(PythonFunction("f", call), plan, 6, 2.0)
    right = ran(function("plain", "scorer", plan), plan, 6)
    assert [told.error for told in outcomes if told.id != "2"] == [None] * 5
    assert outcomes[2].error == "timed out: it took more than 2 s"
    for told, undisturbed in zip(outcomes, right, strict=True):
        assert told.id == "2" or told.answer == undisturbed.answer


def test_without_a_time_out_a_function_that_hangs_holds_up_its_row_only(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code, "_PATIENCE", 0.2)
    ended: list[str] = []

    def hangs(problem: str) -> float:
        if problem == "Mia has 0 boxes.":
            held.wait()
        else:
            ended.append(problem)
            if len(ended) == 4:
                held.set()
        return 1.0

    plan = dict.fromkeys(problems(5), "fine 1.0")
    assert [told.error for told in ran(PythonFunction("f", hangs), plan, 5)] == [None] * 5


def test_a_plain_function_is_called_by_one_row_at_a_time() -> None:
    inside, most = [0], [0]

    def counted(problem: str) -> float:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.001)
        inside[0] -= 1
        return 1.0

    plan = dict.fromkeys(problems(12), "fine 1.0")
    ran(PythonFunction("f", counted), plan, 12)
    assert most == [1]


def test_waiting_for_the_function_of_another_row_is_not_in_the_time_out(held: threading.Event) -> None:
    """Four calls of 0.6 s, one after another, for rows that may take 1.5 s and all start at once."""

    def slow(problem: str) -> float:
        held.wait(0.6)
        return 1.0

    plan = dict.fromkeys(problems(4), "fine 1.0")
    assert [told.error for told in ran(PythonFunction("f", slow), plan, 4, 1.5)] == [None] * 4


def test_a_row_that_is_cancelled_from_within_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancelled(*args: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr("qpdsl.runs.job.run_one", cancelled)
    outcomes = ran(function("plain", "scorer", {}), dict.fromkeys(problems(2), "fine 1.0"), 2)
    assert all(told.error and told.error.startswith("internal error: CancelledError") for told in outcomes)


def test_greedy_decoding_that_times_out_is_the_rows_error() -> None:
    """It must not count as a wrong answer of greedy decoding."""
    row = InputRow("7", {}, "12")
    fine = InstanceResult("12", None, (), 1, 2, 0, 0.1)
    slow = InstanceResult(None, None, (), 1, 2, 0, 0.1, "timed out: it took more than 1 s", timed_out=True)
    told = asyncio.run(outcome(row, fine, slow, EqualAnswer(), with_rows=False))
    assert (told.answer, told.correct, told.greedy_correct) == ("12", True, None)
    assert told.error == "greedy decoding timed out: it took more than 1 s"


class AnyGrader:
    """Says what it is told to say of an answer, or raises it."""

    name, version = "any", "1"

    def __init__(self, says: bool | Exception | None) -> None:
        self._says = says

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if isinstance(self._says, Exception):
            raise self._says
        return Grade(self._says)


ENDS = {
    "answered": InstanceResult("12", None, (), 1, 2, 0, 0.1),
    "failed": InstanceResult(None, None, (), 1, 2, 0, 0.1, "timed out", timed_out=True),
    "unanswered": InstanceResult(None, None, (), 1, 2, 0, 0.1, "no row is left", unanswered=True),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("says", [True, False, None, OverflowError("1e9999999"), KeyError("kind")], ids=repr)
@pytest.mark.parametrize("reference", ["12", None])
def test_an_accuracy_counts_every_row_that_can_be_graded(
    end: str, says: bool | Exception | None, reference: str | None
) -> None:
    told = asyncio.run(outcome(InputRow("7", {}, reference), ENDS[end], None, AnyGrader(says), with_rows=False))
    undecided = reference is None or says is None
    right = says is True and end != "failed"
    assert told.correct is (None if undecided else right)
    raised = isinstance(says, Exception) and reference is not None and end == "answered"
    assert (told.failure is not None) is (raised or end == "failed" or (end == "unanswered" and undecided))
    summary = Summary([told], 1.0, 2).to_json(timing=False)
    assert summary["failed"] == (told.failure is not None) and summary.get("compared", 0) == (not undecided)
    totals = Totals().with_row(RowRecord(number=0, key="", outcome=told))
    assert (totals.failed, totals.graded) == (summary["failed"], summary.get("compared", 0))
    figures = CellFigures.of([{0: told}])
    assert (figures.failed, len(figures.shares)) == (totals.failed, totals.graded)


FUNCTIONS = """
import asyncio, sys, qpdsl as qp

@qp.scorer
async def f(problem):
    if "1" in problem:
        shared = asyncio.ensure_future(asyncio.sleep(9))
        shared.cancel()
        await shared
    if "2" in problem:
        sys.exit(0)
    return 1.0
"""


@pytest.mark.parametrize("to_file", [False, True])
def test_on_the_command_line(qpdsl: Run, tmp_path: Path, to_file: bool) -> None:
    (tmp_path / "p.qp").write_text(SCORED)
    (tmp_path / "f.py").write_text(FUNCTIONS)
    rows = write_rows(tmp_path / "in.jsonl", [{"problem": problem} for problem in problems(4)])
    output = tmp_path / "out.jsonl"
    to = ("--output", output) if to_file else ()
    result = qpdsl("run", tmp_path / "p.qp", "--input", rows, "--python", tmp_path / "f.py", *to)
    text = output.read_text() if to_file else result.out
    records = [json.loads(line) for line in text.splitlines()]
    assert result.code == 1 and [record["id"] for record in records] == ["1", "2", "3", "4"]
    assert ["error" in record for record in records] == [False, True, True, False]
    assert "CancelledError" in records[1]["error"] and "SystemExit: 0" in records[2]["error"]


SCRIPT = """
import asyncio, os, sys, time
import pydantic
import qpdsl as qp

@qp.scorer
def f(problem):
    if "exits" in problem: sys.exit(3)
    if "interrupts" in problem: raise KeyboardInterrupt
    while "hangs" in problem: time.sleep(0.01)
    return 1.0

@qp.scorer
async def g(problem):
    if "sleeps" in problem: await asyncio.to_thread(time.sleep, 10**6)
    return 1.0

@qp.program
def p(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.generate("zoo/counting-mini", n=2, temperature=0.9, max_tokens=4)
    rows.best(by=rows.score(f))
    rows.best(by=rows.score(g, into="other"))
    return qp.col.text

class Exits(pydantic.BaseModel):
    name: bool
    @pydantic.field_validator("name")
    @classmethod
    def check(cls, value):
        raise KeyboardInterrupt

@qp.program
def validated(problem: str) -> Exits:
    rows = qp.chat(user=problem)
    return rows.generate("zoo/counting-mini", as_=Exits, max_tokens=40)

bounded = p.using(row_timeout=1.0)
for word in ("exits", "interrupts"):
    print(p.run(word).error)
for word in ("hangs", "sleeps"):
    print(bounded.run(word).error)
print(validated.run("x").error)
print(p.run("fine").error)
child = os.fork()
if not child:
    try:
        p("fine")
    except qp.UsageError as error:
        print("spawn" in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("done", flush=True)
"""


def test_later_calls_in_the_process_work_and_python_ends(forks: Forks, tmp_path: Path) -> None:
    process = forks.start(tmp_path / "run", SCRIPT)
    ((code, _),) = forks.ended([process])
    assert (code, process.err) == (0, "")
    exits, interrupts, hangs, sleeps, validates, fine, forked, done = process.out.splitlines()
    assert "`f` failed: SystemExit: 3" in exits and "`f` failed: KeyboardInterrupt" in interrupts
    assert hangs == sleeps == "timed out: it took more than 1 s" and "KeyboardInterrupt" in validates
    assert (fine, forked, done) == ("None", "True", "done")


def test_a_program_may_be_called_in_a_function() -> None:
    inner = qp.parse('program p(q: text) { chat user=q | generate "zoo/counting-mini" temperature=0 max_tokens=4 }')

    @qp.scorer
    def f(problem: str) -> float:
        return float(len(inner(problem)))

    outer = qp.parse(SCORED, functions=[f])
    assert outer.run("Mia has 3 boxes.").score == len(inner("Mia has 3 boxes."))
