"""What a run's summary says of a filter."""

from __future__ import annotations

from collections import Counter

from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.summary import Summary
from qpdsl.runs.usage import FilterFigures, kept_counts

COUNTS = {
    "filter_samples": 2,
    "filter_draws": 40,
    "filter_sure": 34,
    "large_draws": 6,
    "large_tokens": 90,
    "flush_2": 2,
}


def outcome(name: str, counts: dict[str, int]) -> Outcome:
    fixed = {"answer": "1", "score": None, "tokens_in": 3, "tokens_out": 4, "near_ties": 0, "seconds": 0.1}
    return Outcome(id=name, filtered=counts, **fixed)


def test_it_sums_over_rows_and_tells_batches_from_the_requests_in_them() -> None:
    other = {**COUNTS, "filter_alone": 1, "flush_2": 4}
    summary = Summary([outcome("a", COUNTS), outcome("b", other)], 1.0, 8)
    lines = {line.split("  ")[0]: line for line in summary.lines()}
    assert "decided 68 of 80 draws (85.0%), 1 of 4 samples alone" in lines["small model"]
    assert "drew 12 tokens, computed 180" in lines["large model"]
    assert "in 3 batches of 4.0" in lines["large model"]
    told = summary.to_json(timing=False)["filter"]
    assert told == {"samples": 4, "alone": 1, "draws": 80, "decided": 68, "large_draws": 12}
    assert summary.to_json(timing=True)["filter"] == {**told, "large_tokens": 180, "batches": 3}


def test_without_a_filter_there_is_nothing_to_say() -> None:
    assert FilterFigures.of(kept_counts(Counter({"draws": 7, "accepted": 2}))) is None
    summary = Summary([outcome("a", {})], 1.0, 8)
    assert "filter" not in summary.to_json(timing=True)
    assert not any(line.startswith(("small", "large")) for line in summary.lines())
