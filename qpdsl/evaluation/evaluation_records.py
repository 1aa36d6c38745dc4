"""An `Evaluation` for programs: as JSON, and as CSV. The keys are stable."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, BinaryIO

from qpdsl.evaluation.evaluation import CellResult, Evaluation
from qpdsl.planner.values.json_values import plain

_VERSION = 1
_COLUMNS = (
    "program", "parameters", "problems", "seeds", "failed", "accuracy", "low", "high", "tokens", "tokens_in",
    "seconds", "front_tokens", "front_seconds", "difference", "difference_low", "difference_high", "p_value",
)  # fmt: skip


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """All of it, each cell a record."""
    return {
        "qpdsl_eval": _VERSION,
        "name": evaluation.name,
        "input": evaluation.input,
        "problems": evaluation.problems,
        "seeds": list(evaluation.seeds),
        "baseline": None if evaluation.baseline is None else evaluation.baseline.name,
        "cells": [_cell(evaluation, result) for result in evaluation.results],
    }


def json_text(evaluation: Evaluation) -> str:
    """`to_json`, written on several lines."""
    return json.dumps(to_json(evaluation), ensure_ascii=False, allow_nan=False, indent=2)


def csv_text(evaluation: Evaluation) -> str:
    """A line a cell under the names of the columns; what is not known is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for result in evaluation.results:
        record = _cell(evaluation, result)
        writer.writerow({**record, **(record["against"] or {}), "parameters": result.cell.parameters})
    return file.getvalue().removesuffix("\n")


def begins_evaluation(file: BinaryIO) -> bool:
    """Whether an open file holds an evaluation in one of its formats, as far as its beginning tells."""
    start = file.read(4000).decode(errors="replace")
    if start.startswith("{"):
        return start[1:].lstrip().startswith('"qpdsl_eval"')
    if start.startswith(",".join(_COLUMNS)):
        return True
    # Text and Markdown begin with the same title.
    lines = start.split("\n")
    title, *rest = lines
    is_titled = " problem" in title and " seed" in title and " x " in title
    return is_titled and len(rest) > 1 and rest[1].lstrip("| ").startswith("program")


def _cell(evaluation: Evaluation, result: CellResult) -> dict[str, Any]:
    figures, interval, paired = result.figures, result.interval, result.against
    record = {
        "program": result.cell.program,
        "parameters": dict(result.cell.settings),
        "choice": result.cell.choice or None,
        "problems": figures.problems,
        "seeds": figures.seeds,
        "failed": figures.failed,
        "accuracy": figures.accuracy,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "tokens": figures.tokens,
        "tokens_in": figures.tokens_in,
        "seconds": figures.seconds,
        "front_tokens": result.cheap,
        "front_seconds": result.quick,
        "against": None
        if paired is None
        else {
            "difference": paired.difference,
            "difference_low": paired.interval.low,
            "difference_high": paired.interval.high,
            "p_value": paired.p_value,
            "gained": paired.gained,
            "lost": paired.lost,
        },
        "groups": dict(result.groups) if evaluation.by is not None else None,
        "runs": list(result.runs),
    }
    return {name: plain(value) for name, value in record.items()}
