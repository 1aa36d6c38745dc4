"""A comparison as JSON, for programs; its keys are stable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qpdsl.planner.values.value import plain
from qpdsl.runs.compare.comparison import Comparison, Figure, GroupFigure, Pair
from qpdsl.runs.compare.comparison_text import verdict
from qpdsl.runs.compare.side import ComparedProblem, Side
from qpdsl.runs.statistics import Interval

_DIGITS = 6


def comparison_record(
    comparison: Comparison, *, rows: int | None = None, groups: Sequence[GroupFigure] = (), field: str = ""
) -> dict[str, Any]:
    """The comparison as plain data, with up to `rows` problems that flipped each way, all of them without."""
    matching, setup, said = comparison.matching, comparison.setup, verdict(comparison)
    record = {
        "first": _side(comparison.first),
        "second": _side(comparison.second),
        "problems": len(matching.pairs),
        "reworded": matching.reworded,
        "only_first": [problem.id for problem in matching.only_first],
        "only_second": [problem.id for problem in matching.only_second],
        "same_noise": setup.same_noise,
        "changes": [{"name": change.name, "first": change.first, "second": change.second} for change in setup.changes],
        "program": list(setup.source),
        "plan": list(setup.plan),
        "accuracy": None if comparison.accuracy is None else _figure(comparison.accuracy),
        "detectable": None if comparison.detectable is None else round(comparison.detectable, _DIGITS),
        "costs": {figure.name: _figure(figure) for figure in comparison.costs},
        "operators": [
            {"first": None if one is None else asdict(one), "second": None if other is None else asdict(other)}
            for one, other in comparison.operators
        ],
        "flips": {
            "gained": len(comparison.gained),
            "lost": len(comparison.lost),
            "other_answers": comparison.other_answers,
        },
        "gained": [_pair(pair) for pair in comparison.gained[:rows]],
        "lost": [_pair(pair) for pair in comparison.lost[:rows]],
        "verdict": {"kind": said.kind, "text": said.text},
    }
    if groups:
        record["by"] = {
            "field": field,
            "groups": [{"value": plain(group.value), **_figure(group.accuracy)} for group in groups],
        }
    return record


def _side(side: Side) -> dict[str, Any]:
    record = side.record
    return {
        "runs": [run.info.id for run in side.runs],
        "program": record.program,
        "parameters": dict(record.parameters),
        "models": dict(record.models),
        "seeds": list(side.seeds),
        "grader": record.grader,
        "rows": [len(run.rows) for run in side.runs],
        "of": [run.record.rows for run in side.runs],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    paired = figure.paired
    return {
        "problems": paired.pairs,
        "first": round(figure.first, _DIGITS),
        "first_interval": _interval(figure.first_interval),
        "second": round(figure.second, _DIGITS),
        "second_interval": _interval(figure.second_interval),
        "difference": round(paired.difference, _DIGITS),
        "interval": _interval(paired.interval),
        "p_value": round(paired.p_value, _DIGITS),
    }


def _interval(interval: Interval) -> list[float]:
    return [round(interval.low, _DIGITS), round(interval.high, _DIGITS)]


def _pair(pair: Pair) -> dict[str, Any]:
    first, second = pair
    return {"id": first.id, "reference": plain(first.reference), "first": _answers(first), "second": _answers(second)}


def _answers(problem: ComparedProblem) -> list[Any]:
    """The answer of each seed."""
    return [plain(row.outcome.answer) for row in problem.rows]
