"""What the operators of two sides took, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qpdsl.comparison.side import Side


@dataclass(frozen=True, slots=True)
class OperatorSums:
    """An operator as EXPLAIN says it, and what all problems of a run took of it; `seconds` are those of forwards."""

    operator: str
    rows_out: int
    tokens_in: int
    tokens_out: int
    seconds: float


OperatorPair = tuple[OperatorSums | None, OperatorSums | None]


def operator_pairs(first: Side, second: Side) -> list[OperatorPair]:
    """The operators of both sides in the order in which they run, each beside its like in the other.

    They are alike where their ids and kinds are equal. Empty where not all runs of both sides have measured theirs.
    """
    one, other = _by_place(first), _by_place(second)
    if not one or not other:
        return []
    places = [*one, *(place for place in other if place not in one)]
    return [(one.get(place), other.get(place)) for place in places]


def _by_place(side: Side) -> dict[tuple[str, str], OperatorSums]:
    """The operators by id and kind; the sums of several runs."""
    if not all(run.operators for run in side.runs):
        return {}
    sums: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in side.runs:
        for operator in run.operators:
            sums.setdefault((operator["id"], operator["operator"].split(" ")[0]), []).append(operator)
    return {place: _sum(parts) for place, parts in sums.items()}


def _sum(parts: Sequence[Mapping[str, Any]]) -> OperatorSums:
    rows, tokens_in, tokens_out, seconds = (
        sum(part[name] for part in parts) for name in ("rows_out", "tokens_in", "tokens_out", "seconds")
    )
    return OperatorSums(parts[0]["operator"], rows, tokens_in, tokens_out, seconds)
