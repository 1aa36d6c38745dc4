"""A kept run as a file for other programs: JSON lines, one JSON object, or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from qpdsl.cli.commands.records.run_tables import run_json
from qpdsl.planner.values.json_values import dumps, plain
from qpdsl.run_store.run_file import RunFile
from qpdsl.run_store.run_record import RowRecord

FORMATS = ("jsonl", "json", "csv")
_MARK = "qpdsl_run"
# The columns of CSV, which the fields of the input follow.
_COLUMNS = (
    "run", "number", "id", "asked", "answer", "reference", "correct", "points", "score", "support", "tokens_in",
    "tokens_out", "seconds", "engine_seconds", "error", "reused",
)  # fmt: skip


def exported(run: RunFile, form: str) -> Iterator[str]:
    """The lines of a run in one of `FORMATS`: a line a row, or for `json` one object with all that is known."""
    rows = (_row(run.id, row) for row in run.rows())
    if form == "csv":
        return _csv(list(rows))
    if form == "json":
        return iter([dumps({_MARK: 1, **run_json(run), "finished_rows": list(rows)})])
    return (dumps(row) for row in rows)


def begins_export(file: BinaryIO) -> bool:
    """Whether an open file holds what `exported` wrote, as far as its first line tells."""
    first = file.readline().rstrip(b"\r\n")
    if first.startswith(",".join(_COLUMNS).encode()):
        return True
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and (_MARK in record or list(record)[:3] == list(_COLUMNS[:3]))


def _row(run: str, row: RowRecord) -> dict[str, Any]:
    """A row, for programs; the keys are stable, and those that Outcome has besides follow them."""
    outcome = row.outcome.to_json()
    known = {"run": run, "number": row.number, "id": outcome["id"], "asked": row.asked, "answer": outcome["answer"]}
    known |= {"reference": row.reference, "correct": outcome["correct"]}
    rest = {name: plain(value) for name, value in outcome.items() if name not in known}
    return {**known, **rest, "reused": row.reused, "replica": row.replica, "fields": dict(row.fields)}


def _csv(rows: list[dict[str, Any]]) -> Iterator[str]:
    fields = list(dict.fromkeys(name for row in rows for name in row["fields"]))
    # A field of the input may be called as a column is.
    names = [f"input.{name}" if name in _COLUMNS else name for name in fields]
    yield _csv_line([*_COLUMNS, *names])
    for row in rows:
        yield _csv_line([*(row.get(name) for name in _COLUMNS), *(row["fields"].get(name) for name in fields)])


def _csv_line(values: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([_cell(value) for value in values])
    return line.getvalue()


def _cell(value: Any) -> Any:
    match value:
        case None:
            return ""
        case bool() | dict() | list() | tuple():
            return dumps(value)
    return value
