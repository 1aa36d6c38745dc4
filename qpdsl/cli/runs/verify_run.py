"""`qpdsl verify`: rows of a saved run, run again and held against what was saved."""

from __future__ import annotations

from collections.abc import Sequence

from qpdsl.cli.runs.repeated_run import Elsewhere, repeated
from qpdsl.cli.signals import interruptible, run_until_interrupted
from qpdsl.errors import UsageError
from qpdsl.runs.compare.retraced import Retracing
from qpdsl.runs.compare.side import SavedRun, read_run
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.verification import Verification, VerifiedRow, gives_up, saved_difference, spread_rows


def verify(saved: SavedRun, elsewhere: Elsewhere, count: int | None, seed: int) -> Verification:
    """Runs `count` rows of a run again, None for all, chosen by a seed. Raises what the run itself may raise."""
    with RunFile.reading(saved.path) as file:
        damaged = [number for number, row in file.checked_rows() if row is None]
    late = [row.outcome.id for row in saved.rows if (row.outcome.error or "").startswith("timed out")]
    there = {row.number: row for row in saved.rows if row.outcome.id not in late}
    if not there and not damaged:
        raise UsageError(f"run `{saved.info.id}` has no finished row to verify")
    with interruptible(), repeated(saved, elsewhere) as again:
        known = [number for number, row in there.items() if again.is_here(row)]
        numbers = sorted([*known, *damaged])
        chosen = spread_rows(numbers, len(numbers) if count is None else count, seed)
        counts = not gives_up(again.job.plan)
        side = Retracing(again.session, again.job, run_until_interrupted, again.options.concurrency)
        found = side.rows([(number, again.rows[number]) for number in chosen if number in there])
        rows = [
            VerifiedRow(number, there[number].outcome.id, saved_difference(there[number], found[number].outcome, counts=counts))
            if number in there
            else VerifiedRow(number, f"row {number + 1}", damaged=True)
            for number in chosen
        ]
        return Verification(
            saved.info.id, tuple(rows), len(saved.rows) + len(damaged), False, tuple(again.elsewhere), tuple(late)
        )
