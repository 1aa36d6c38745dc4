"""How sure a program is of its answer, by what chose it last: what a budget goes by (`BudgetPolicy`).

- A `vote`: the winner's share of all weight that could have been cast, which is the sum of the winner's weights over
  the number of rows that came to the vote. With `decided=`, over the number of those that counted. A vote that gave
  samples up has none, as how many depends on which ended first.
- `best by X`, and `keep 1 by X`: the X of the row that was kept.
- Else the score that the program reports.

Each is a number that depends on the row's samples alone, so it is the same in every run with the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, everything


def support_of(chain: tuple[PhysicalOp, ...], supports: Mapping[str, float], score: float | None) -> float | None:
    """How sure the operators of a whole program were of their answer; None where nothing says so.

    `supports` are those of `Instance`, `score` is what the program reports. What was chosen before more was sampled
    says nothing of the answer.
    """
    for node in reversed(chain):
        if isinstance(node.op, ops.Vote) and node.op.per is None:
            return supports.get(node.id)
        if node.id in supports:
            return supports[node.id]
        if any(isinstance(inner.op, ops.Generate) for inner in everything((node,))):
            break
    return score
