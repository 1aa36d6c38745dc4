"""Exit heads that the user has fitted (`qpdsl calibrate`), as ways to decode that a plan may take.

Each margin that was measured is one way, with the share of draws that change as it was found on text kept apart. Under
`within epsilon(x)` a head is offered with a certificate instead. Where the exit's logits are off by E at the most, its
token is the best one under some logits within x of the model's if it leads by more than 2(E − x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from qpdsl.exit_heads.exit_record import ExitAgreement, ExitFigures, ExitRecord
from qpdsl.grammar import ast
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.source import Span
from qpdsl.planner.cost.statistics import seen
from qpdsl.planner.optimize.measured_ways import MeasuredWay
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import TokenCost
from qpdsl.planner.plan.physical import Tolerance

_NOWHERE = Span(0, 0)


def exit_ways(heads: Mapping[str, str | Path], within: Tolerance) -> tuple[MeasuredWay, ...]:
    """What the heads in these folders offer a program that permits `within`; folders by the names of models.

    The empty name stands for any model. Raises ModelError where a folder holds no exit heads.
    """
    ways: list[MeasuredWay] = []
    for model, place in heads.items():
        folder = str(place)
        record = ExitRecord.read(model or folder, Path(place).expanduser())
        for figures in record.heads:
            if within.level == "epsilon" and within.bound is not None:
                ways.append(_certified(model, folder, figures, within.bound))
            else:
                ways += _by_margin(model, folder, figures)
    return tuple(ways)


def _by_margin(model: str, folder: str, figures: ExitFigures) -> Iterator[MeasuredWay]:
    for point in figures.curve:
        if not point.exits:
            continue
        via = ops.Amortized(_number(point.margin), _number(figures.layer), head=folder, span=_NOWHERE)
        loss = seen(point.loss * figures.draws, figures.draws)
        measured = f"{loss:.2%} of {figures.draws:,} draws change, {point.exits:.0%} leave, by `qpdsl calibrate`"
        yield _way(model, via, loss, figures, point, measured)


def _certified(model: str, folder: str, figures: ExitFigures, epsilon: float) -> MeasuredWay:
    error = figures.bound.largest
    certify = max(error - epsilon, 0.0)
    via = ops.Amortized(None, _number(figures.layer), head=folder, certify=_number(certify), span=_NOWHERE)
    exits = figures.bound.leading(2 * certify) if certify else 1.0
    off = f"logits of the exit off by {error:.2g} in {figures.draws:,} draws"
    measured = f"{off}, {exits:.0%} lead by enough, by `qpdsl calibrate`"
    leaving = ExitAgreement(0.0, exits, 1.0, 1.0)
    return _way(model, via, None, figures, leaving, measured, min(error, epsilon))


def _way(
    model: str,
    via: ops.Amortized,
    loss: float | None,
    figures: ExitFigures,
    point: ExitAgreement,
    measured: str,
    epsilon: float | None = None,
) -> MeasuredWay:
    first = [] if via.margin is None else [format_expr(via.margin)]
    rest = [] if via.certify is None else [f"certify={format_expr(via.certify)}"]
    words = f"amortized({', '.join([*first, f'layer={figures.layer}', *rest])})"
    cost = TokenCost(large=figures.cost(point))
    draws = float(figures.draws)
    return MeasuredWay(model, via, loss, cost, words, measured, f"exit {figures.layer}", epsilon, draws=draws)


def _number(value: float) -> ast.Literal:
    return ast.Literal(value, span=_NOWHERE)
