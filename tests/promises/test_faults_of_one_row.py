"""The promise that a fault of ours in one row's work fails that row, and ends no run over rows."""

from __future__ import annotations

import asyncio
import errno
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import qpdsl as qp
from qpdsl.executor.requests.errors import ServerGone
from qpdsl.executor.runtime import run as runtime
from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.planner.plan.physical import PhysicalOp
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.runner import outcomes_of
from qpdsl.session.session import Session
from tests.support.cli import Run, write_rows
from tests.support.executor.programs import compiled

PROGRAM = """
model llm = "zoo/counting-mini"
model prm = "zoo/counting-prm"
program p(problem: text) -> text {
  chat user=problem
  split 2
  generate llm n=2 temperature=0.9 max_tokens=6
  score prm given problem
  repeat 2 { generate llm temperature=0.9 max_tokens=3 | keep 3 by logprob }
  branch { { extract a = /[0-9]+/ } { let b = tokens } }
  each e in ["x", "y"] { let c = "{text} {e}" }
  if tokens > 5 { where finished or tokens > 0 } else { distinct by text }
  order by tokens
  vote text
}
"""
FAULTS: Mapping[str, Callable[[], BaseException]] = {
    "KeyError": lambda: KeyError("a%20b"),
    "AssertionError": AssertionError,
    "RecursionError": RecursionError,
    "StopIteration": StopIteration,
    "IndexError": lambda: IndexError("\ud800\x1b[2J"),
    "RuntimeError": lambda: RuntimeError("x" * 10_000),
    "InvalidStateError": asyncio.InvalidStateError,
    "CancelledError": asyncio.CancelledError,
    "UnicodeEncodeError": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
}
# What concerns more than the row that meets it.
ENDING: Mapping[str, Callable[[], BaseException]] = {
    "ServerGone": lambda: ServerGone("no answer"),
    "MemoryError": MemoryError,
    "a full disk": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "KeyboardInterrupt": KeyboardInterrupt,
}


class Faults:
    """Operators that raise in certain rows, by the rows' ids: what, and at which of the operators that a row meets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: Mapping[str, tuple[str, int]]) -> None:
        self._plan = plan
        self._met: dict[str, int] = {}
        for kind, operate in runtime._OPERATORS.items():
            monkeypatch.setitem(runtime._OPERATORS, kind, self._around(operate))  # type: ignore[arg-type]

    def _around(self, operate: runtime.Operate) -> runtime.Operate:
        async def operated(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
            name, at = self._plan.get(instance.name, ("", -1))
            met = self._met[instance.name] = self._met.get(instance.name, -1) + 1
            if met == at:
                await asyncio.sleep(0)
                raise {**FAULTS, **ENDING}[name]()
            return await operate(node, rows, instance)

        return operated


def ran(count: int, concurrency: int) -> list[Outcome]:
    session, plan = Session(), compiled(PROGRAM)
    session.load(plan)
    rows = [InputRow(str(number), {"problem": f"Mia has {number} boxes."}) for number in range(count)]
    outcomes = asyncio.run(asyncio.wait_for(outcomes_of(session, Job(plan, None, 3), rows, concurrency), 60))
    assert session.busy == 0
    session._local.check_integrity()
    return outcomes


def test_the_other_rows_are_those_of_a_run_without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ran(8, 4)
    assert [told.failure for told in expected] == [None] * 8
    for seed in range(8):
        chance = random.Random(seed)
        plan = {str(row): (chance.choice(list(FAULTS)), chance.randrange(12)) for row in chance.sample(range(8), 4)}
        with monkeypatch.context() as patched:
            Faults(patched, plan)
            outcomes = ran(8, chance.choice([1, 3, 8]))
        for told, fine in zip(outcomes, expected, strict=True):
            if told.id in plan and told.error is not None:
                assert told.error.startswith("internal error: ") and told.error.endswith("please report it")
                assert len(told.error) < 700 and "\n" not in told.error
            else:
                assert (told.answer, told.score, told.tokens_out) == (fine.answer, fine.score, fine.tokens_out)
        assert sum(told.error is not None for told in outcomes) >= 3


@pytest.mark.parametrize("ending", ENDING)
def test_what_every_row_would_meet_ends_the_run(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Faults(monkeypatch, {"1": (ending, 3)})
    with pytest.raises(type(ENDING[ending]())):
        ran(3, 1)


def test_the_command_goes_on_and_the_row_is_tried_again(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.qp").write_text(PROGRAM)
    rows = write_rows(tmp_path / "in.jsonl", [{"problem": f"Mia has {number} boxes."} for number in range(4)])
    output, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    command = ("run", tmp_path / "p.qp", "--input", rows, "--output")
    assert qpdsl(*command, whole).code == 0
    with monkeypatch.context() as patched:
        Faults(patched, {"2": ("KeyError", 4)})
        result = qpdsl(*command, output)
    errors = [json.loads(line).get("error") for line in output.read_text().splitlines()]
    assert result.code == 1 and [error is None for error in errors] == [True, False, True, True]
    assert errors[1].startswith("internal error: KeyError: 'a%20b'")
    assert qpdsl(*command, output, "--reuse", "--overwrite").code == 0
    assert output.read_bytes() == whole.read_bytes()

    with monkeypatch.context() as patched:
        Faults(patched, {"2": ("KeyError", 4), "4": ("ServerGone", 4)})
        again = tmp_path / "again.jsonl"
        assert qpdsl(*command, again, "--concurrency", 1).code == 6
    resumed = qpdsl(*command, again, "--resume")
    assert resumed.code == 0 and "rows that failed by an internal error run again: `2`" in resumed.err
    assert again.read_bytes() == whole.read_bytes()


def test_a_program_that_runs_alone_ends_with_the_fault(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.qp").write_text(PROGRAM)
    Faults(monkeypatch, {"p": ("KeyError", 4), "": ("KeyError", 4)})
    result = qpdsl("run", tmp_path / "p.qp", "--set", "problem=Mia has 3 boxes.")
    assert result.code == 70 and "\ninternal error: KeyError" in result.err
    with pytest.raises(KeyError):
        qp.parse(PROGRAM)("Mia has 3 boxes.")


def test_rows_of_map_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    program = qp.parse(PROGRAM)
    rows = [{"problem": f"Mia has {number} boxes."} for number in range(3)]
    whole = {result.id: result.value for result in program.map(rows)}
    Faults(monkeypatch, {"1": ("KeyError", 4), "2": ("KeyError", 4)})
    results = list(program.map(rows))
    failed = [result.error for result in results if result.error is not None]
    assert failed and all(error.startswith("internal error: KeyError") for error in failed)
    assert all(result.value == whole[result.id] for result in results if result.error is None)
