"""A saved run as a log of inspect_ai (`EvalLog`, version 2), which its viewer and its Python functions open."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import qpdsl
from qpdsl.planner.values.value import plain, shown
from qpdsl.runs.statistics import wilson
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_record import RowRecord, RunInfo, RunRecord

_VERSION = 2
_STATES = {"finished": "success", "interrupted": "cancelled", "failed": "error", "running": "started"}
# The fields that a log begins with.
FIRST_FIELDS = ("version", "status", "eval")


def inspect_log(run: RunFile) -> dict[str, Any]:
    """The log of a run with a sample for each of its rows; the run's seed and plan, among others, are its metadata.

    A saved run has the beginning of what a row asked, and of what was generated the answer alone, unless candidates
    were recorded: these are in the metadata of their sample. A row without a grade has no score.
    """
    info, record = run.info(), run.record
    rows = list(run.rows())
    grader = record.grader.partition(" ")[0] or "equal"
    model = ", ".join(record.models.values()) or "none"
    usage = {model: _usage(info.totals.tokens_in, info.totals.tokens_out)}
    return {
        "version": _VERSION,
        "status": _STATES[info.status],
        "eval": {
            "eval_id": info.id,
            "run_id": info.id,
            "created": _time(record.started),
            "task": record.program,
            "task_id": info.id,
            "task_version": 0,
            "task_args": {name: plain(value) for name, value in record.parameters.items()},
            "dataset": {
                "name": record.input,
                "samples": record.rows,
                "sample_ids": [row.outcome.id for row in rows],
                "shuffled": False,
            },
            "model": model,
            "config": {"epochs": 1},
            "packages": {"qpdsl": qpdsl.__version__},
            "metadata": _metadata(record),
        },
        "plan": {"name": record.planned, "steps": [], "config": {"seed": record.seed}},
        "results": {
            "total_samples": record.rows,
            "completed_samples": len(rows),
            "scores": _scores(info, grader),
        },
        "stats": {
            "started_at": _time(record.started),
            "completed_at": _time(info.ended or record.started),
            "model_usage": usage,
        },
        "samples": [_sample(row, grader, model, info.id) for row in rows],
    }


def _metadata(record: RunRecord) -> dict[str, Any]:
    return {
        "source": record.source,
        "plan": record.plan,
        "models": dict(record.models),
        "fingerprint": dict(record.fingerprint),
        "machine": record.machine,
        "policy": None if record.policy is None else dict(record.policy),
    }


def _scores(info: RunInfo, grader: str) -> list[dict[str, Any]]:
    totals = info.totals
    if not totals.graded:
        return []
    interval = wilson(totals.correct, totals.graded)
    figures = {"accuracy": totals.correct / totals.graded, "low": interval.low, "high": interval.high}
    metrics = {name: {"name": name, "value": value, "params": {}} for name, value in figures.items()}
    return [{"name": grader, "scorer": grader, "params": {}, "metrics": metrics}]


def _sample(row: RowRecord, grader: str, model: str, run: str) -> dict[str, Any]:
    outcome = row.outcome
    answer = "" if outcome.answer is None else shown(outcome.answer)
    target = row.reference if isinstance(row.reference, list | tuple) else [row.reference]
    message = {"role": "assistant", "content": answer, "source": "generate"}
    sample: dict[str, Any] = {
        "id": outcome.id,
        "epoch": 1,
        "input": row.asked,
        "target": ["" if right is None else shown(right) for right in target],
        "messages": [{"role": "user", "content": row.asked, "source": "input"}, message],
        "output": {"model": model, "choices": [{"message": message, "stop_reason": "stop"}]},
        "metadata": {
            "fields": dict(row.fields),
            "score": outcome.score,
            "support": outcome.support,
            "near_ties": outcome.near_ties,
            "candidates": outcome.candidates,
        },
        "model_usage": {model: _usage(outcome.tokens_in, outcome.tokens_out)},
        "total_time": outcome.seconds,
        "uuid": f"{run}-{row.number}",
    }
    if outcome.correct is not None:
        sample["scores"] = {grader: {"value": "C" if outcome.correct else "I", "answer": answer}}
    if outcome.failure is not None:
        sample["error"] = {"message": outcome.failure, "traceback": outcome.failure, "traceback_ansi": outcome.failure}
    return sample


def _usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    return {"input_tokens": tokens_in, "output_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
