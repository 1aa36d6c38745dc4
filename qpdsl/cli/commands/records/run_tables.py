"""Kept runs as text and as plain data: the list of them, and all that is known of one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.dataset.summary import aligned
from qpdsl.errors import shorten
from qpdsl.measures.statistics.intervals import wilson
from qpdsl.planner.explain.quantities import count, seconds
from qpdsl.planner.explain.tree_table import laid_out
from qpdsl.planner.values.json_values import shown
from qpdsl.run_store.measured import MEASURED, operators_of
from qpdsl.run_store.run_file import RunFile
from qpdsl.run_store.run_record import RowRecord, RunInfo, Totals

_HEAD = ("run", "state", "rows", "accuracy", "tokens", "program")
_LONGEST_VALUE = 24


def table(infos: Sequence[RunInfo], width: int | None) -> str:
    """A line a run: its id, its state, how far it came, what it came to, and which program with which values."""
    lines = [_HEAD, *(_cells(info) for info in infos)]
    return "\n".join(line for entry in laid_out(lines, width=width, right={2, 4}) for line in entry)


def _cells(info: RunInfo) -> tuple[str, ...]:
    totals = info.totals
    rows = f"{totals.done}/{info.record.rows}" if totals.done < info.record.rows else str(totals.done)
    return info.id, info.state, rows, _short_accuracy(totals), count(totals.tokens_out), _program(info)


def _program(info: RunInfo) -> str:
    record = info.record
    values = [f"{name}={shorten(shown(value), _LONGEST_VALUE)}" for name, value in record.parameters.items()]
    seed = [f"seed={record.seed}"] if record.seed else []
    return " ".join([record.program, *values, *seed, *dict.fromkeys(record.models.values())])


def _short_accuracy(totals: Totals) -> str:
    if not totals.graded:
        return ""
    interval = wilson(totals.correct, totals.graded)
    return f"{totals.correct / totals.graded:.1%} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def facts(run: RunFile) -> str:
    """All that is known of a run without its rows: facts, the plan, what happened to it."""
    info, record = run.info(), run.record
    totals = info.totals
    accuracy = f"{totals.correct} of {totals.graded}: {_short_accuracy(totals)}" if totals.graded else ""
    tokens = f"{totals.tokens_in:,} in, {totals.tokens_out:,} out"
    rows = [f"{totals.done} of {record.rows}"]
    rows += [f"{totals.failed} failed"] * bool(totals.failed) + [f"{totals.reused} of other runs"] * bool(totals.reused)
    known = [
        ("run", info.id),
        ("state", info.state),
        ("program", record.program),
        *((name, shorten(shown(value), 200)) for name, value in record.parameters.items()),
        *((f"model {name}", model) for name, model in record.models.items()),
        ("seed", str(record.seed)),
        ("input", record.input),
        ("rows", ", ".join(rows)),
        ("grader", record.grader),
        ("accuracy", accuracy),
        ("tokens", tokens),
        ("engine", seconds(totals.engine_seconds) if totals.engine_seconds else ""),
        ("began", _moment(record.started)),
        ("machine", record.machine),
        ("output", record.output or ""),
        ("sweep", record.sweep or ""),
        ("command", " ".join(["qpdsl", *record.command]) if record.command else ""),
        ("file", str(run.path)),
    ]
    lines = aligned((name, value) for name, value in known if value)
    lines += ["", "plan", *(f"  {line}" for line in record.plan.splitlines())]
    lines += ["", "events"]
    lines += [f"  {_moment(at)}   {_event(kind, data)}" for at, kind, data in run.events() if kind != MEASURED]
    return "\n".join(lines)


def _event(kind: str, data: Mapping[str, Any]) -> str:
    more = ", ".join(f"{name}: {shorten(shown(value), 80)}" for name, value in data.items() if value)
    return f"{kind} ({more})" if more else kind


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def rows_table(rows: Sequence[RowRecord], width: int | None) -> str:
    """A line a row: its id, whether it is right, its answer, the right answer, and its tokens."""
    verdicts = {True: "right", False: "wrong", None: ""}
    lines: list[tuple[str, ...]] = [("row", "grade", "tokens", "answer", "reference")]
    for row in rows:
        outcome = row.outcome
        answer = f"failed: {outcome.failure}" if outcome.failure is not None else shown(outcome.answer)
        right = "" if row.reference is None else shown(row.reference)
        grade = verdicts[outcome.correct]
        lines.append((outcome.id, grade, str(outcome.tokens_out), shorten(answer, 60), shorten(right, 40)))
    return "\n".join(line for entry in laid_out(lines, width=width, right={2}) for line in entry)


def info_json(info: RunInfo) -> dict[str, Any]:
    """A run in a list, for programs; the keys are stable."""
    record, totals = info.record, info.totals
    accuracy = None
    if totals.graded:
        interval = wilson(totals.correct, totals.graded)
        accuracy = {"share": totals.correct / totals.graded, "low": interval.low, "high": interval.high}
    return {
        "run": info.id,
        "state": info.state,
        "program": record.program,
        "parameters": dict(record.parameters),
        "models": dict(record.models),
        "seed": record.seed,
        "input": record.input,
        "input_digest": record.input_digest,
        "rows": record.rows,
        "done": totals.done,
        "failed": totals.failed,
        "reused": totals.reused,
        "correct": totals.correct,
        "graded": totals.graded,
        "accuracy": accuracy,
        "tokens_in": totals.tokens_in,
        "tokens_out": totals.tokens_out,
        "engine_seconds": round(totals.engine_seconds, 6),
        "grader": record.grader,
        "sweep": record.sweep,
        "began": record.started,
        "ended": info.ended,
    }


def run_json(run: RunFile) -> dict[str, Any]:
    """All that is known of a run without its rows, for programs; the keys are stable."""
    info, record = run.info(), run.record
    return {
        **info_json(info),
        "fingerprint": dict(record.fingerprint),
        "machine": record.machine,
        "command": list(record.command),
        "output": record.output,
        "policy": None if record.policy is None else dict(record.policy),
        "source": record.source,
        "plan": record.plan,
        "summary": dict(info.summary),
        "operators": operators_of(run),
        "events": [{"at": at, "event": kind, **data} for at, kind, data in run.events() if kind != MEASURED],
    }
