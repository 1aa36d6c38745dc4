"""What is saved of a run, before its first row, and of each of its rows."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from qpdsl.errors import shorten
from qpdsl.planner.explain.plan import explain
from qpdsl.planner.values.value import Value, plain
from qpdsl.runs.data.input_row import InputData, InputRow
from qpdsl.runs.graders.grader import Grader
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.fingerprint import Fingerprint, digest

# "running" is also what a run is called that was killed; whether somebody writes it now, its lock tells.
Status = Literal["running", "finished", "interrupted", "failed"]
# So much of a row's text is kept to recognize it by, and of its other fields those that are no longer.
_MAX_ASKED = 400
_LONGEST_FIELD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What is known of a whole run before its first row.

    `program` is the program's name and `source` its text; `plan` the plan as EXPLAIN shows it, and `planned` which
    rules made it. `parameters` are the values that hold for all rows, `models` ids by the program's names.
    `fingerprint` is what the results depend on besides the rows (see `fingerprint.py`): two runs with the same
    fingerprint give a row the same tokens. `input` is the name of the data, `input_digest` that of its bytes, `rows`
    how many there are. `grader` is the grader's name and version. `policy`: what a budgeted plan decides by, as JSON,
    None without one. `choice` is the strategy or the budget that a run settles its program by, as people
    write it. `sweep` names the sweep that the run is a cell of, None for a run of its own. `started` is in
    seconds since 1970; `machine` describes where, for people. `output` is the file of `--output`, and `replaces` says
    that results which are there are replaced.
    """

    program: str
    source: str
    parameters: Mapping[str, Any]
    models: Mapping[str, str]
    seed: int
    plan: str
    planned: str
    fingerprint: Fingerprint
    input: str
    input_digest: str
    rows: int
    grader: str
    started: float
    machine: str
    policy: Mapping[str, Any] | None = None
    choice: str = ""
    sweep: str | None = None
    command: tuple[str, ...] = ()
    output: str | None = None
    replaces: bool = False

    @property
    def key(self) -> str:
        """Equal for runs whose equal rows have equal results."""
        return digest(dict(self.fingerprint))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRecord:
    """One finished row. `number` counts rows of the input from 0; `key` is `row_key` of the row.

    `asked` is the beginning of its longest own text, for people, `reference` what its answer was held against, and
    `fields` the short ones of its `InputRow`, for tables by group. `graded_by` is `grading_key` of the row, empty where
    the grader failed, so that whoever takes the row over grades it again. `reused` is the id of the run that computed
    it, None for this one; `replica` the replica that did, where that could matter. `finished` is in seconds since 1970.
    """

    number: int
    key: str
    outcome: Outcome
    asked: str = ""
    reference: Any = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    graded_by: str = ""
    reused: str | None = None
    replica: str | None = None
    finished: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts over the finished rows of a run: those that failed, that are wrong for want of an answer, that are right,
    that were graded, and tokens.

    `reused` rows were computed by other runs. `engine_seconds`: see `InstanceResult`.
    """

    done: int = 0
    failed: int = 0
    unanswered: int = 0
    correct: int = 0
    graded: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    thought_tokens: int = 0
    reused: int = 0
    engine_seconds: float = 0.0

    def with_row(self, row: RowRecord) -> Totals:
        """The counts with one row more."""
        outcome = row.outcome
        return Totals(
            done=self.done + 1,
            failed=self.failed + (outcome.failure is not None),
            unanswered=self.unanswered + outcome.wrong_for_no_answer,
            correct=self.correct + (outcome.correct is True),
            graded=self.graded + (outcome.correct is not None),
            tokens_in=self.tokens_in + outcome.tokens_in,
            tokens_out=self.tokens_out + outcome.tokens_out,
            thought_tokens=self.thought_tokens + outcome.thought_tokens,
            reused=self.reused + (row.reused is not None),
            engine_seconds=self.engine_seconds + outcome.engine_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A saved run in a list. `writing` says that a process writes it now; `ended` is in seconds since 1970.

    `summary` is what the run came to when it ended, as `Summary.to_json` says it; empty before.
    """

    id: str
    record: RunRecord
    status: Status
    totals: Totals
    ended: float | None = None
    writing: bool = False
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The status for people: a run that is called running, and that nobody writes, was stopped."""
        return "stopped" if self.status == "running" and not self.writing else self.status


def row_key(row: InputRow) -> str:
    """What a row's result depends on besides the run: its arguments. What it is graded by is not part of it."""
    return digest(dict(row.arguments))


def grading_key(row: InputRow, grader: Grader) -> str:
    """What the grade of a row's answer depends on: the grader, the reference and the other fields."""
    return digest([grader_name(grader), repr(row.reference), repr(sorted(row.fields.items()))])


def grader_name(grader: Grader) -> str:
    """A grader as the record of a run names it."""
    return f"{grader.name} {grader.version}"


def asked(row: InputRow) -> str:
    """The beginning of the longest text that is a row's own, else of any argument: people recognize it by that."""
    texts = {name: value for name, value in row.arguments.items() if isinstance(value, str)}
    own = [texts[name] for name in texts if name in row.own]
    return shorten(max(own or texts.values(), key=len, default=""), _MAX_ASKED)


def short_fields(row: InputRow) -> dict[str, Any]:
    """The fields of a row that are kept: numbers, truth values and short texts."""
    kept = {name: plain(value) for name, value in row.fields.items()}
    return {name: value for name, value in kept.items() if _is_short(value)}


def _is_short(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _LONGEST_FIELD)


def run_record(
    job: Job,
    data: InputData,
    values: Mapping[str, Value],
    fingerprint: Fingerprint,
    *,
    choice: str = "",
    sweep: str | None = None,
    command: Sequence[str] = (),
    output: Path | None = None,
    replaces: bool = False,
) -> RunRecord:
    """The record of a run of `job` over `data`, which begins now.

    `values` hold for all rows; `fingerprint` is `run_fingerprint` of the same. The other arguments are fields of
    `RunRecord`.
    """
    return RunRecord(
        program=job.plan.name,
        source=job.source,
        parameters={name: plain(value) for name, value in values.items()},
        models=dict(job.models),
        seed=job.seed,
        plan=explain(job.plan),
        planned=job.planned,
        fingerprint=dict(fingerprint),
        input=data.name,
        input_digest=data.digest,
        rows=len(data.rows),
        grader=grader_name(job.grader),
        started=time.time(),
        machine=machine(),
        policy=None if job.plan.policy is None else job.plan.policy.to_json(),
        choice=choice,
        sweep=sweep,
        command=tuple(command),
        output=None if output is None else str(output),
        replaces=replaces,
    )


@cache
def machine() -> str:
    """This machine in a few words, for people: its name, its processor, its cores."""
    cores = os.cpu_count() or 1
    return f"{platform.node()}, {_processor()}, {cores} core{'s' * (cores > 1)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
