"""First divergences in a terminal, in a page's table and as JSON; the keys of the JSON are stable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from qpdsl.errors import shorten
from qpdsl.planner.values.value import shown
from qpdsl.runs.compare.comparison_text import columns
from qpdsl.runs.compare.first_divergences import (
    FirstDivergences,
    PlacedDivergence,
    ProblemDivergence,
    sample_name,
)

if TYPE_CHECKING:
    from qpdsl.executor.engine.step.margin import Margin

# What parted a problem, for people.
CAUSES: Mapping[str, str] = {
    "token": "a token drawn otherwise",
    "choice": "a choice among the same samples",
    "prompt": "another prompt",
}
HEAD = ("problem", "better", "parted by", "where", "A → B", "margin in A", "margin in B")
_LONGEST_PIECE = 16
_NONE = "–"


def summary_facts(found: FirstDivergences) -> Iterator[tuple[str, str]]:
    """What all problems came to: names, and what is said under them."""
    problems, diverged = len(found.problems), len(found.diverged)
    if not diverged:
        yield "diverged", f"none of {problems:,} problems: every sample is the same, and every answer"
        return
    yield "diverged", f"{diverged:,} of {problems:,} problems; in the others every sample is the same, and the answer"
    for cause, words in CAUSES.items():
        if own := found.of(cause):
            yield f"  by {words}", f"{len(own):,}"
    if (middle := found.median_token) is not None:
        tokens = sorted(own.row_token + 1 for own in found.of("token"))
        yield "at token", f"{middle:g} of its row (median; {tokens[0]:,} to {tokens[-1]:,})"
    for side, gaps in zip("AB", found.margins, strict=True):
        if gaps:
            yield f"margin in {side}", f"{gap_text(median(gaps))} (median; least {gap_text(min(gaps))})"
    if tokens_parted := found.of("token"):
        near = sum(own.near_tie for own in tokens_parted)
        yield "near ties", f"{near:,} of {len(tokens_parted):,} such tokens ({near / len(tokens_parted):.0%})"
    if found.flips:
        causes = Counter(own.lost.divergence.cause for own in found.flips if own.lost is not None)
        parts = ", ".join(f"{count:,} by {CAUSES[cause]}" for cause, count in causes.most_common())
        yield "flipped", f"{len(found.flips):,} problem{'s' * (len(found.flips) > 1)}: {parts}"


def divergence_lines(found: FirstDivergences, *, rows: int) -> list[str]:
    """The first divergences for people: a summary, and up to `rows` problems, those that flipped first."""
    lines = ["first divergence", *columns([(f"  {name}", said) for name, said in summary_facts(found)])]
    if listed := table_rows(found)[:rows]:
        more = len(table_rows(found)) - len(listed)
        lines += [
            "",
            *columns([HEAD, *listed], right=(5, 6)),
            *([f"{more:,} more; `--rows` shows them"] if more else []),
        ]
    return lines


def table_rows(found: FirstDivergences) -> list[tuple[str, ...]]:
    """A row of cells for each problem that flipped, then for each of the others that diverged."""
    flipped = [_cells(own, own.better or "", own.lost) for own in found.flips]
    others = [own for own in found.problems if own.lost is None and own.first is not None]
    return flipped + [_cells(own, "", own.first) for own in others]


def _cells(problem: ProblemDivergence, better: str, own: PlacedDivergence | None) -> tuple[str, ...]:
    assert own is not None
    name, cause = shorten(problem.pair[0].id, 24), own.divergence.cause
    if cause == "choice":
        return name, better, "choice", " ".join(filter(None, (own.operator, _in_rounds(own)))), _NONE, _NONE, _NONE
    where = f"{own.operator}, {sample_name(own.divergence)}, token {own.divergence.place + 1}".replace(", ,", ",")
    return (name, better, cause, where, " → ".join(map(piece_text, own.pieces)), *map(margin_text, own.margins))


def _in_rounds(own: PlacedDivergence) -> str:
    return f"before {sample_name(own.divergence)}" if own.divergence.operator else ""


def piece_text(piece: str) -> str:
    """A token's text in quotes; of a sample that had ended, that it had."""
    return f'"{shorten(piece.replace(chr(10), chr(0x21B5)), _LONGEST_PIECE)}"' if piece else "end"


def margin_text(margin: Margin | None) -> str:
    """A margin, and whether it is a near tie; a dash where none is known."""
    if margin is None:
        return _NONE
    return f"{gap_text(margin.gap)}{' (near tie)' if margin.near_tie else ''}"


def gap_text(gap: float) -> str:
    """A difference of perturbed logits with as many digits as say something."""
    if math.isinf(gap):
        return "no other id"
    return f"{gap:.3g}" if gap >= 1e-3 else f"{gap:.1e}"


def divergence_record(found: FirstDivergences, *, rows: int | None = None) -> dict[str, Any]:
    """First divergences as plain data, with up to `rows` problems, all of them without."""
    first, second = found.margins
    tokens = found.of("token")
    listed = [own for own in found.problems if own.first is not None or own.lost is not None]
    return {
        "problems": len(found.problems),
        "unrepeated": list(found.unrepeated),
        "diverged": {cause: len(found.of(cause)) for cause in CAUSES},
        "median_token": found.median_token,
        "median_margin": [None if not gaps else _gap(median(gaps)) for gaps in (first, second)],
        "near_ties": sum(own.near_tie for own in tokens),
        "flips": {
            cause: sum(own.lost is not None and own.lost.divergence.cause == cause for own in found.flips)
            for cause in CAUSES
        },
        "rows": [
            {
                "id": own.pair[0].id,
                "first": None if own.first is None else placed_record(own.first),
                "better": own.better,
                "lost": None if own.lost is None else placed_record(own.lost),
                "answers": [shown(problem.rows[0].outcome.answer) for problem in own.pair],
            }
            for own in listed[:rows]
        ],
    }


def placed_record(own: PlacedDivergence) -> dict[str, Any]:
    """One divergence as plain data. Places count from 0."""
    found = own.divergence
    return {
        "cause": found.cause,
        "operator": own.operator,
        "rounds": list(found.rounds),
        "path": list(found.path),
        "token": found.place,
        "row_token": own.row_token,
        "ids": [found.first, found.second],
        "texts": list(own.pieces),
        "margins": [None if margin is None else _gap(margin.gap) for margin in own.margins],
        "near_tie": own.near_tie,
    }


def _gap(gap: float) -> float | None:
    """None where no other id could come."""
    return None if math.isinf(gap) else round(gap, 9)
