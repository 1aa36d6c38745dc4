"""A verification in a terminal and as JSON, whose keys are stable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qpdsl.errors import shorten
from qpdsl.planner.values.value import plain, shown
from qpdsl.runs.compare.comparison_text import columns
from qpdsl.runs.compare.divergence_text import margin_text, piece_text, placed_record
from qpdsl.runs.compare.first_divergences import PlacedDivergence, sample_name
from qpdsl.runs.verification import SavedDifference, Verification, VerifiedRow

_LONGEST_VALUE = 60


def verification_lines(found: Verification) -> list[str]:
    """The rows that differ, each with where it does, and the verdict."""
    differing = found.differing
    lines = columns((row.id, difference_text(row)) for row in differing)
    return [*lines, *([""] if lines else []), verdict(found)]


def verdict(found: Verification) -> str:
    """What came of it in a sentence."""
    rows, differing = len(found.rows), found.differing
    of = f"{rows:,} row{'s' * (rows != 1)} of {found.saved:,}"
    tokens = "" if found.tokens else "; its tokens were not saved, answers were"
    if not differing:
        return f"the same to the byte: {of} of run `{found.run}`{tokens}"
    ties = sum(1 for row in differing if row.divergence is not None and row.divergence.near_tie)
    near = f", {ties:,} of them at a near tie" if ties else ""
    return f"{len(differing):,} of {of} of run `{found.run}` differ{'s' * (len(differing) == 1)}{near}{tokens}"


def difference_text(row: VerifiedRow) -> str:
    """Where a row differs, for people."""
    if row.damaged:
        return "damaged: the file does not hold what was written"
    parts = []
    if row.divergence is not None:
        parts.append(token_text(row.divergence))
    if row.difference is not None:
        parts.append(_value_text(row.difference))
    return "; ".join(parts)


def token_text(own: PlacedDivergence) -> str:
    """The first token that differs: where, what was saved and what was drawn, and how near a tie that was."""
    found = own.divergence
    where = ", ".join(filter(None, (own.operator, sample_name(found))))
    if found.cause == "choice":
        return f"{where}: another row went on" if found.operator else f"{where}: another row was chosen"
    saved, again = map(piece_text, own.pieces)
    margin = "" if own.margins[1] is None else f", margin {margin_text(own.margins[1])}"
    return f"{where}, token {found.place + 1} (id {found.second}): {saved} was saved, {again} drawn{margin}"


def _value_text(own: SavedDifference) -> str:
    saved, again = (shorten(shown(value), _LONGEST_VALUE) for value in (own.saved, own.again))
    at = "" if own.character is None else f" from character {own.character + 1} on"
    return f"{own.where}{at}: {saved} was saved, {again} came"


def verification_record(found: Verification) -> dict[str, Any]:
    """A verification as plain data. Places count from 0."""
    return {
        "run": found.run,
        "rows": len(found.rows),
        "of": found.saved,
        "tokens_saved": found.tokens,
        "same": len(found.rows) - len(found.differing),
        "differ": len(found.differing),
        "elsewhere": list(found.elsewhere),
        "left_out": list(found.left_out),
        "differing": [_row_record(row) for row in found.differing],
        "verified": [row.id for row in found.rows],
    }


def _row_record(row: VerifiedRow) -> dict[str, Any]:
    own = row.difference
    return {
        "id": row.id,
        "number": row.number,
        "damaged": row.damaged,
        "divergence": None if row.divergence is None else placed_record(row.divergence),
        "difference": None
        if own is None
        else {"where": own.where, "saved": plain(own.saved), "again": plain(own.again), "character": own.character},
    }


def notes(found: Verification) -> Iterator[str]:
    """What to know first, a line each."""
    for line in found.elsewhere:
        yield f"note: another build or device than then: {line}"
    if found.left_out:
        yield f"note: left out, as they took longer than they were given: {', '.join(found.left_out)}"
