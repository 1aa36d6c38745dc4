"""What to know before a comparison is believed."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.comparison.comparison import Comparison
from qpdsl.comparison.side import Side


def notes(comparison: Comparison) -> list[str]:
    """In words, a line each, what makes the figures of a comparison say less than they seem to."""
    found = [note for side in (comparison.first, comparison.second) for note in side_notes(side)]
    if comparison.first.name == comparison.second.name:
        found.append("note: both sides are the same run")
    if len(comparison.first.runs) != len(comparison.second.runs):
        found.append("note: one side has more seeds: its accuracy varies less")
    one, other = (side.record.grader for side in (comparison.first, comparison.second))
    if one != other:
        found.append(f"warning: answers were graded by `{one}` and by `{other}`; part of the difference may be theirs")
    if comparison.first.record.machine != comparison.second.record.machine:
        found.append("note: the runs were on different machines, so their seconds say little")
    references = sum(first.reference != second.reference for first, second in comparison.matching.pairs)
    if references:
        found.append(f"warning: {references:,} problems have another right answer in the second run")
    return found


def side_notes(side: Side) -> Iterator[str]:
    """The same of one side by itself."""
    for run in side.unfinished:
        yield f"note: run `{run.info.id}` is {run.info.state}: {len(run.rows):,} of {run.record.rows:,} rows are there"
    failed = sum(row.outcome.error is not None for run in side.runs for row in run.rows)
    if failed:
        what = "a row failed" if failed == 1 else f"{failed:,} rows failed"
        yield f"note: {what} in `{side.name}`; such rows count as wrong"
    ungraded = sum(row.outcome.grader_error is not None for run in side.runs for row in run.rows)
    if ungraded:
        what = "a row" if ungraded == 1 else f"{ungraded:,} rows"
        yield f"note: the grader failed for {what} of `{side.name}`, so that this is not compared"
