"""Accuracy for people and for programs: with its interval, by group, and at every number of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.measures.calibration import Calibration
from qpdsl.measures.sample_metrics import ChoiceAccuracy
from qpdsl.measures.statistics.intervals import wilson

_WIDTH = 8


def share_words(correct: int, total: int) -> str:
    """`367/500 (73.4%, 69.4% to 77.1%)`: the interval is Wilson's at 95%."""
    interval = wilson(correct, total)
    return f"{correct}/{total} ({correct / total:.1%}, {interval.low:.1%} to {interval.high:.1%})"


def share_json(correct: int, total: int) -> dict[str, Any]:
    """The same for programs; the keys are stable."""
    interval = wilson(correct, total)
    return {
        "correct": correct,
        "compared": total,
        "accuracy": round(correct / total, 5),
        "interval": [round(interval.low, 5), round(interval.high, 5)],
    }


def choice_facts(accuracies: Sequence[ChoiceAccuracy]) -> list[tuple[str, str]]:
    """A line for each metric, with a column for each number of samples."""
    if not accuracies:
        return []
    numbers = list(dict.fromkeys(own.k for own in accuracies))
    by_name: dict[str, dict[int, float]] = {}
    for own in accuracies:
        by_name.setdefault(own.metric, {})[own.k] = own.accuracy
    lines = [("k", "".join(f"{k:<{_WIDTH}}" for k in numbers).rstrip())]
    for name, shares in by_name.items():
        lines.append((f"{name}@k", "".join(f"{shares[k]:<{_WIDTH}.1%}" for k in numbers).rstrip()))
    return lines


def choice_json(accuracies: Sequence[ChoiceAccuracy]) -> dict[str, Any]:
    """By metric and number of samples: the share, and its interval."""
    found: dict[str, dict[str, Any]] = {}
    for own in accuracies:
        interval = [round(own.interval.low, 5), round(own.interval.high, 5)]
        found.setdefault(own.metric, {})[str(own.k)] = {"accuracy": round(own.accuracy, 5), "interval": interval}
    return found


def calibration_words(found: Calibration) -> str:
    """`AUROC 0.981, expected error 0.034, Brier 0.061 (500 answers)`."""
    figures = {"AUROC": found.auroc, "expected error": found.expected_error, "Brier": found.brier}
    words = ", ".join(f"{name} {value:.3f}" for name, value in figures.items() if value is not None)
    return f"{words or 'nothing can be told'} ({found.answers} answers)"


def calibration_json(found: Calibration) -> Mapping[str, Any]:
    figures = {"auroc": found.auroc, "expected_error": found.expected_error, "brier": found.brier}
    return {"answers": found.answers} | {
        name: None if value is None else round(value, 5) for name, value in figures.items()
    }
