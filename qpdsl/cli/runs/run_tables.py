"""Saved runs for people and for other programs: the list of them, all that is known of one, and its rows as a file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from qpdsl.errors import shorten
from qpdsl.planner.cost.run_figures import THOUGHT_TOKENS, thought_json
from qpdsl.planner.explain.quantities import byte_count, count, seconds
from qpdsl.planner.explain.tree_table import laid_out
from qpdsl.planner.values.value import plain, shown
from qpdsl.runs.inspect_log import FIRST_FIELDS
from qpdsl.runs.record_file import ARRAY, LINES, first_fields
from qpdsl.runs.statistics import wilson
from qpdsl.runs.store.measured import MEASURED, operators_of
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_record import RowRecord, RunInfo, Totals
from qpdsl.runs.summary import aligned
from qpdsl.runs.usage import tokens_words

_HEAD = ("run", "state", "rows", "accuracy", "tokens", "thought", "program")
_LONGEST_VALUE = 24

_MARK = "qpdsl_run"
# The columns of a table, which the fields of the input follow.
_COLUMNS = (
    "run", "number", "id", "asked", "answer", "reference", "correct", "points", "score", "support", "tokens_in",
    "tokens_out", "seconds", "engine_seconds", "error", "unanswered", "reused",
)  # fmt: skip


def table(infos: Sequence[RunInfo], width: int | None) -> str:
    """A line a run: its id, its state, how far it came, what it came to, and which program with which values."""
    lines = [_HEAD, *(_cells(info) for info in infos)]
    return "\n".join(line for entry in laid_out(_shown(lines), width=width, right={2, 4, 5}) for line in entry)


def _shown(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The lines of a table, the names of the columns first, without thoughts where there are none."""
    at = lines[0].index("thought")
    thinks = any(line[at] for line in lines[1:])
    return [line if thinks else (*line[:at], "", *line[at + 1 :]) for line in lines]


def _thoughts(tokens: int) -> str:
    return count(tokens) if tokens else ""


def _cells(info: RunInfo) -> tuple[str, ...]:
    totals = info.totals
    rows = f"{totals.done}/{info.record.rows}" if totals.done < info.record.rows else str(totals.done)
    tokens = count(totals.tokens_out), _thoughts(totals.thought_tokens)
    return info.id, info.state, rows, _short_accuracy(totals), *tokens, _program(info)


def _program(info: RunInfo) -> str:
    record = info.record
    values = [f"{name}={shorten(shown(value), _LONGEST_VALUE)}" for name, value in record.parameters.items()]
    seed = [f"seed={record.seed}"] if record.seed else []
    told = [record.program, *values, record.choice, *seed, *dict.fromkeys(record.models.values())]
    return " ".join(filter(None, told))


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
    tokens = tokens_words(totals.tokens_in, totals.tokens_out, totals.thought_tokens)
    rows = [f"{totals.done} of {record.rows}"]
    rows += [f"{totals.failed} failed"] * bool(totals.failed)
    rows += [f"{totals.unanswered} without an answer"] * bool(totals.unanswered)
    rows += [f"{totals.reused} of other runs"] * bool(totals.reused)
    known = [
        ("run", info.id),
        ("state", info.state),
        ("program", record.program),
        *((name, shorten(shown(value), 200)) for name, value in record.parameters.items()),
        ("choice", record.choice),
        *((f"model {name}", model) for name, model in record.models.items()),
        ("seed", str(record.seed)),
        ("input", record.input),
        ("rows", ", ".join(rows)),
        ("grader", record.grader),
        ("accuracy", accuracy),
        ("tokens", tokens),
        ("engine", seconds(totals.engine_seconds) if totals.engine_seconds else ""),
        ("samples", samples_words(run)),
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


def samples_words(run: RunFile) -> str:
    """How much is saved of a run's samples; empty where nothing is."""
    rows, size = run.samples_size()
    if not rows:
        return ""
    return f"{rows:,} row{'s' * (rows > 1)}, {byte_count(size)}, {byte_count(size / rows)} a row"


def _event(kind: str, data: Mapping[str, Any]) -> str:
    more = ", ".join(f"{name}: {shorten(shown(value), 80)}" for name, value in data.items() if value)
    return f"{kind} ({more})" if more else kind


def _moment(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # a foreign file may hold any number
        return "?"


def rows_table(rows: Sequence[RowRecord], width: int | None) -> str:
    """A line a row: its id, whether it is right, its answer, the right answer, and its tokens."""
    verdicts = {True: "right", False: "wrong", None: ""}
    lines: list[tuple[str, ...]] = [("row", "grade", "tokens", "thought", "answer", "reference")]
    for row in rows:
        outcome = row.outcome
        answer = shown(outcome.answer) if outcome.unanswered is None else f"no answer: {outcome.unanswered}"
        answer = answer if outcome.failure is None else f"failed: {outcome.failure}"
        right = "" if row.reference is None else shown(row.reference)
        grade = verdicts[outcome.correct]
        grade += "" if outcome.in_part is None else f" ({outcome.in_part:.0%})"
        tokens = str(outcome.tokens_out), str(outcome.thought_tokens or "")
        lines.append((outcome.id, grade, *tokens, shorten(answer, 60), shorten(right, 40)))
    return "\n".join(line for entry in laid_out(_shown(lines), width=width, right={2, 3}) for line in entry)


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
        "choice": record.choice or None,
        "models": dict(record.models),
        "seed": record.seed,
        "input": record.input,
        "input_digest": record.input_digest,
        "rows": record.rows,
        "done": totals.done,
        "failed": totals.failed,
        "unanswered": totals.unanswered,
        "reused": totals.reused,
        "correct": totals.correct,
        "graded": totals.graded,
        "accuracy": accuracy,
        "tokens_in": totals.tokens_in,
        "tokens_out": totals.tokens_out,
        **({THOUGHT_TOKENS: totals.thought_tokens} if totals.thought_tokens else {}),
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


def exported(run: RunFile, form: str) -> list[dict[str, Any]]:
    """The records of a run for a format: one a row, or for `json` one with all that is known."""
    rows = [_row(run.id, row) for row in run.rows()]
    if form == ARRAY:
        return [{_MARK: 1, **run_json(run), "finished_rows": rows}]
    return rows if form == LINES else _flat(rows)


def begins_export(file: BinaryIO) -> bool:
    """Whether an open file holds what was exported, as far as its first record tells."""
    fields = first_fields(file)
    return _MARK in fields or tuple(fields[:3]) in (_COLUMNS[:3], FIRST_FIELDS)


def _row(run: str, row: RowRecord) -> dict[str, Any]:
    """A row, for programs; the keys are stable, and those that Outcome has besides follow them."""
    outcome = row.outcome.to_json()
    known = {"run": run, "number": row.number, "id": outcome["id"], "asked": row.asked, "answer": outcome["answer"]}
    known |= {"reference": row.reference, "correct": outcome["correct"]}
    rest = {name: plain(value) for name, value in outcome.items() if name not in known}
    rest |= {"error": row.outcome.failure, "unanswered": None if row.outcome.failure else row.outcome.unanswered}
    return {**known, **rest, "reused": row.reused, "replica": row.replica, "fields": dict(row.fields)}


def _flat(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as records of a table, the fields of the input beside the columns."""
    fields = list(dict.fromkeys(name for row in rows for name in row["fields"]))
    # A field of the input may be called as a column is.
    names = {name: f"input.{name}" if name in (*_COLUMNS, THOUGHT_TOKENS) else name for name in fields}
    thinks = any(thought_json(row["filtered"]) for row in rows)
    return [
        {name: row.get(name) for name in _COLUMNS}
        | ({THOUGHT_TOKENS: row["filtered"].get(THOUGHT_TOKENS, 0)} if thinks else {})
        | {names[name]: row["fields"].get(name) for name in fields}
        for row in rows
    ]
