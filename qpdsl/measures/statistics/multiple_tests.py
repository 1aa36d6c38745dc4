"""Several tests at once: with many of them, one comes out small by chance."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, in their order, each raised so that below a level all together err with that probability at most.

    Holm's step-down procedure (1979), which asks nothing of how the tests depend on each other.
    """
    raised = [0.0] * len(p_values)
    highest = 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(p_values[number] * (len(p_values) - rank), 1.0))
        raised[number] = highest
    return raised
