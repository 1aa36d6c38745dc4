"""In which order rows start: by priority, and those that share long beginnings of their prompts one after another.

So the rows that run side by side meet in the prefix cache, however little of it there is, as those do that wait in the
engine's queue, which goes by the longest cached prefix. Groups stand where their first row stood, so no row waits for
one that is neither before it nor shares a prefix with one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import NumberedRow

# Characters beyond what all rows have in common from which on two rows go together: some pages of tokens.
_LONG = 256
# Groups within groups, at the most.
_DEEPEST = 16

Keyed = tuple[str, int]


def in_start_order(rows: Sequence[NumberedRow], plan: Callable[[NumberedRow], PhysicalPlan]) -> list[NumberedRow]:
    """The rows in their order; `plan` is that by which a row is run."""
    ordered: list[NumberedRow] = []
    by_priority = sorted(rows, key=lambda one: one.row.priority)
    for _, group in groupby(by_priority, key=lambda one: (one.row.priority, one.run)):
        own = list(group)
        names = plan(own[0]).prompted
        keyed = [("\0".join(str(one.row.arguments.get(name)) for name in names), at) for at, one in enumerate(own)]
        ordered += [own[at] for at in together(keyed)] if names else own
    return ordered


def together(keyed: Sequence[Keyed], depth: int = 0) -> list[int]:
    """The places of texts, each given with its text, so that long shared beginnings are next to one another."""
    by_text = sorted(keyed)
    least = _shared(by_text[0][0], by_text[-1][0]) + _LONG if keyed else 0
    groups = [[one] for one in by_text[:1]]
    for (before, _), (text, place) in pairwise(by_text):
        if _shared(before, text) >= least:
            groups[-1].append((text, place))
        else:
            groups.append([(text, place)])
    if len(groups) == len(keyed):
        return sorted(place for _, place in keyed)
    if depth == _DEEPEST:
        return [place for group in groups for _, place in group]
    groups.sort(key=lambda group: min(place for _, place in group))
    return [place for group in groups for place in together(group, depth + 1)]


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    if one == other:
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
