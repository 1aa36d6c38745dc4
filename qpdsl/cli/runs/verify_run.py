"""`qpdsl verify`: rows of a saved run, run again and held against what was saved."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.cli.runs.repeated_run import Elsewhere, repeated
from qpdsl.cli.signals import interruptible, run_until_interrupted
from qpdsl.errors import UsageError
from qpdsl.executor.sample_memory.saved_samples import RowSamples
from qpdsl.runs.compare.divergence import first_divergence
from qpdsl.runs.compare.first_divergences import PlacedDivergence, operator_words
from qpdsl.runs.compare.retraced import RetracedRow, Retracing
from qpdsl.runs.compare.side import SavedRun
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.verification import Verification, VerifiedRow, gives_up, saved_difference, spread_rows


def verify(saved: SavedRun, elsewhere: Elsewhere, count: int | None, seed: int) -> Verification:
    """Runs `count` rows of a run again, None for all, chosen by a seed. Raises what the run itself may raise."""
    late = [row.outcome.id for row in saved.rows if (row.outcome.error or "").startswith("timed out")]
    there = {row.number: row for row in saved.rows if row.outcome.id not in late}
    with RunFile.reading(saved.path) as file:
        damaged = [number for number, row in file.checked_rows() if row is None]
        # Of a run that saves samples each row has some.
        with_tokens = file.samples_size()[0] > 0
        samples = {number: file.samples(number) for number in there} if with_tokens else {}
    damaged += [number for number, data in samples.items() if data is None]
    if not there and not damaged:
        raise UsageError(f"run `{saved.info.id}` has no finished row to verify")
    with interruptible(), repeated(saved, elsewhere) as again:
        known = [number for number, row in there.items() if again.is_here(row)]
        numbers = sorted({*known, *damaged})
        chosen = spread_rows(numbers, len(numbers) if count is None else count, seed)
        side = Retracing(again.session, again.job, run_until_interrupted, again.options.concurrency)
        sound = [number for number in chosen if number not in damaged]
        found = side.rows([(number, again.rows[number]) for number in sound])
        rows = {number: VerifiedRow(number, _id(saved, number), damaged=True) for number in chosen}
        counts = not gives_up(again.job.plan)
        for number in sound:
            data, own = samples.get(number), found[number]
            rows[number] = VerifiedRow(
                number,
                there[number].outcome.id,
                saved_difference(there[number], own.outcome, counts=counts),
                None if data is None else _divergence(RowSamples.decoded(data), own, side),
            )
        here = tuple(again.elsewhere)
        return Verification(
            saved.info.id, tuple(rows[number] for number in chosen), len(saved.rows), with_tokens, here, tuple(late)
        )


def _id(saved: SavedRun, number: int) -> str:
    return next((row.outcome.id for row in saved.rows if row.number == number), f"row {number + 1}")


def _divergence(saved: RowSamples, again: RetracedRow, side: Retracing) -> PlacedDivergence | None:
    """The first token that was saved otherwise than it is drawn here, with the margin that it is drawn by."""
    pairs = again.saved(saved)
    found = first_divergence([before for before, _ in pairs], [now for _, now in pairs])
    if found is None:
        return None
    before, now = found.samples
    assert before is not None and now is not None
    kept = again.of(now)
    margin = side.margins([(kept, found.place)])[0] if found.place < len(now.tokens) else None
    pieces = (side.piece(kept.model, before.tokens, found.place), side.piece(kept.model, now.tokens, found.place))
    placed = PlacedDivergence(found, operator_words(side.job.plan, found))
    return replace(placed, pieces=pieces, margins=(None, margin))
