"""The scores that say how sure the model was of what it wrote: of figures that the engine told of each draw."""

from __future__ import annotations

from collections.abc import Sequence

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops

# The tokens of a group, where the program does not say.
_WINDOW = 256


async def draw_score(op: ops.DrawScore, rows: Candidates, instance: Instance) -> Candidates:
    """None where nothing was sampled, or a part of the text was not drawn token by token. Raises RowError."""
    window = _WINDOW if op.window is None else instance.whole("window", op.window)
    return tuple(row.with_column(op.into, _draw_score(op, row, window)) for row in rows)


def _draw_score(op: ops.DrawScore, row: Row, window: int) -> float | None:
    values = [getattr(figures, op.kind) for figures in row.generated.figures or ()]
    if not values:
        return None
    if op.kind == "confidence":
        values = group_means(values, window)
    made = {"min": min(values), "last": values[-1], "mean": sum(values) / len(values)}
    return round(made[op.reduce], SCORE_DIGITS)


def group_means(values: Sequence[float], window: int) -> list[float]:
    """The mean of each run of `window` values; that of all where there are fewer. Sums run from the left."""
    window = min(window, len(values))
    return [sum(values[start : start + window]) / window for start in range(len(values) - window + 1)]
