"""How often ways to decode that lose something changed a token, as runs saw it by shadows (`--shadow`).

A run knows of some early draws what the full model would have drawn. Its figures belong to the operator as it would be
without that way, so that a later plan that may take it finds them, whoever wrote it: a program or a planner.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qpdsl.grammar import ast
from qpdsl.planner.cost.run_figures import OperatorFigures
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import PhysicalPlan

# Two-sided, 95%.
_NORMAL = 1.959964


def wilson(hits: float, draws: float) -> tuple[float, float]:
    """The interval that holds a share with 95% confidence, where `hits` of `draws` were seen (Wilson, 1927)."""
    if not draws:
        return 0.0, 1.0
    share, square = hits / draws, _NORMAL**2
    middle = share + square / (2 * draws)
    width = _NORMAL * math.sqrt(max(share * (1 - share) / draws + square / (4 * draws**2), 0.0))
    least, most = ((middle + sign * width) / (1 + square / draws) for sign in (-1, 1))
    return max(least, 0.0), min(most, 1.0)


def shadow_words(shadowed: float, differed: float) -> str:
    """How often the full model would have drawn another token, for people."""
    least, most = wilson(differed, shadowed)
    share = f"{differed / shadowed:.1%} ({least * 100:.1f} to {most:.1%}, 95% Wilson)"
    draws = "draw" if shadowed == 1 else "draws"
    return f"shadowed {shadowed:,.0f} early {draws}: {differed:,.0f} would differ, {share}"


def seen(changed: float, draws: float) -> float:
    """The share of draws that is counted as changed: one more than was seen."""
    return min((changed + 1) / (draws + 1), 1.0)


@dataclass(frozen=True, slots=True)
class WayLoss:
    """Of all `draws` of an operator `early` ones were decided in that way; of `shadowed` ones of these `differed`.

    `program` is the program's name.
    """

    program: str
    draws: float
    early: float
    shadowed: float
    differed: float

    @property
    def share(self) -> float:
        """The part of all draws that is decided in that way."""
        return self.early / self.draws

    def loss(self) -> float:
        """The share of all draws that is counted as changed."""
        return self.share * seen(self.differed, self.shadowed)

    def bounds(self) -> tuple[float, float]:
        """Where the share of draws that change lies, with 95% confidence."""
        least, most = wilson(self.differed, self.shadowed)
        return self.share * least, self.share * most

    def plus(self, other: WayLoss) -> WayLoss:
        """Both together."""
        return WayLoss(
            self.program,
            self.draws + other.draws,
            self.early + other.early,
            self.shadowed + other.shadowed,
            self.differed + other.differed,
        )


def way_key(via: ops.Filter | ops.Amortized, plan: PhysicalPlan, threshold: float | None = None) -> str | None:
    """Names a way to decode, by what its clause comes to; None for a filter that moves its threshold.

    `threshold`: that of a filter, in the place of its own. The small model is named by its id.
    """
    values = plan.values()

    def number(expr: ast.Expr | None) -> str:
        value = None if expr is None else evaluate(expr, values)
        return f"{float(value):g}" if isinstance(value, int | float) else "-"

    if isinstance(via, ops.Amortized):
        numbers = (number(expr) for expr in (via.margin, via.layer, via.rerank, via.certify))
        return f"amortized {' '.join(numbers)} {via.head or '-'}"
    if via.threshold is None:
        return None
    kept = number(via.threshold) if threshold is None else f"{threshold:g}"
    return f"filter {plan.models.get(via.model, via.model)} {via.by} {kept}"


def losses_of(op: ops.Generate, figures: OperatorFigures, plan: PhysicalPlan) -> Iterator[tuple[str, WayLoss]]:
    """What a run saw of an operator's way, and with a filter of its larger thresholds, by their keys."""
    shadowed, via = figures.count("shadowed"), op.via
    if not shadowed or via is None or (key := way_key(via, plan)) is None:
        return
    if isinstance(via, ops.Amortized):
        exits, refined = figures.count("exits"), figures.count("refined")
        early = exits if via.rerank is None else exits + refined
        draws = exits + refined + figures.count("full")
    else:
        early = figures.count("filter_sure")
        draws = early + figures.count("large_draws")
    yield key, WayLoss(plan.name, draws, early, shadowed, figures.count("differed"))
    for least in ops.THRESHOLDS if isinstance(via, ops.Filter) else ():
        above, other = figures.count(f"shadowed_{least}"), way_key(via, plan, least)
        if above and other is not None and other != key:
            # Of the draws that nobody looked at as many are so sure.
            sure = early * above / shadowed
            yield other, WayLoss(plan.name, draws, sure, above, figures.count(f"differed_{least}"))


def loss_from(data: Mapping[str, object]) -> WayLoss:
    """A loss from plain data. Raises KeyError, TypeError and ValueError."""
    numbers = [data[name] for name in ("draws", "early", "shadowed", "differed")]
    draws, early, shadowed, differed = (float(value) for value in numbers if isinstance(value, int | float))
    if not 0 <= differed <= shadowed <= early * (1 + 1e-9) <= draws * (1 + 2e-9) < math.inf or not shadowed:
        raise ValueError("counts of draws are expected")
    return WayLoss(str(data["program"]), draws, early, shadowed, differed)
