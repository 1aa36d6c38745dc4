"""What was measured of a run's operators. A run that was gone on with has several parts, each kept as an event."""

from __future__ import annotations

import json
from typing import Any

from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures, operator_seconds
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.explain.plan import in_words
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.runs.store.run_file import RunFile, RunFileError

MEASURED = "measured"
_NOTHING = OperatorFigures()
_SUMS = ("rows_in", "rows_out", "tokens_in", "tokens_out", "seconds")


def keep_measured(run: RunFile, plan: PhysicalPlan, figures: RunFigures, statistics: Statistics) -> None:
    """Keeps what a part of a run came to by operator, and the statistics of it alone. Raises UsageError."""
    if figures.problems:
        operators = _operators(plan, figures)
        run.event(MEASURED, problems=figures.problems, operators=operators, statistics=json.loads(statistics.to_text()))


def operators_of(run: RunFile) -> list[dict[str, Any]]:
    """The operators of a run in running order, each with sums over all problems that were measured; empty without any.

    Keys: `operator` (as EXPLAIN says it), `id`, `rows_in`, `rows_out`, `tokens_in`, `tokens_out`, and `seconds` of
    forwards. Raises RunFileError.
    """
    sums: dict[str, dict[str, Any]] = {}
    for part in _parts(run):
        for operator in part["operators"]:
            before = sums.get(operator["id"])
            sums[operator["id"]] = (
                operator if before is None else {**operator, **{name: before[name] + operator[name] for name in _SUMS}}
            )
    return list(sums.values())


def statistics_of(run: RunFile) -> Statistics:
    """The statistics of a run alone, empty where nothing was measured. Raises RunFileError."""
    statistics = Statistics()
    for part in _parts(run):
        try:
            statistics.join(Statistics.from_text(json.dumps(part.get("statistics"))))
        except ValueError as error:
            raise RunFileError(f"the statistics in `{run.path}` are damaged, or of another version") from error
    return statistics


def _parts(run: RunFile) -> list[Any]:
    parts = [data for _, kind, data in run.events() if kind == MEASURED]
    if not all(_is_part(part) for part in parts):
        raise RunFileError(f"the measurements in `{run.path}` are damaged")
    return parts


def _is_part(part: Any) -> bool:
    """Whether it has the shape of what `keep_measured` writes; events have no digests."""
    operators = part.get("operators")
    return isinstance(operators, list) and all(
        isinstance(operator, dict)
        and isinstance(operator.get("id"), str)
        and isinstance(operator.get("operator"), str)
        and all(type(operator.get(name)) in (int, float) for name in _SUMS)
        for operator in operators
    )


def _operators(plan: PhysicalPlan, figures: RunFigures) -> list[dict[str, Any]]:
    seconds = operator_seconds(plan, figures)
    found = []
    for node in everything(plan.ops):
        own = figures.operators.get(node.id, _NOTHING)
        found.append(
            {
                "id": node.id,
                "operator": in_words(node.op),
                "rows_in": own.rows_in,
                "rows_out": own.rows_out,
                "tokens_in": own.prompt_tokens,
                "tokens_out": own.sampled_tokens,
                "seconds": round(seconds.get(node.id, 0.0), 6),
            }
        )
    return found
