"""How an answer stands: how sure a program is of it, and whether it is a row that was left before its end.

How sure goes by what chose it last, and is what a budget goes by (`BudgetPolicy`):

- A `vote`: the winner's share of all weight that could have been cast, which is the sum of the winner's weights over
  the number of rows that came to the vote. With `decided=`, over the number of those that counted. A vote that gave
  samples up has none, as how many depends on which ended first.
- `best by X`, and `keep 1 by X`: the X of the row that was kept.
- Else the score that the program reports.

Each is a number that depends on the row's samples alone, so it is the same in every run with the same seed.

A `repeat` or a `search` goes on with rows step by step until they are finished. Where it stops before that, its result
is a part of an answer, which looks like one. A `generate` with a `stop` outside of them writes what it is meant to.
"""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, everything
from qpdsl.planner.plan.rule import Chain

# Arms and blocks whose rows go on behind them.
_PARTS = (ops.Branch, ops.If, ops.Each)


def ends_in_steps(chain: Chain) -> bool:
    """Whether the rows of a chain were last written by a loop that goes on with them."""
    for node in reversed(chain):
        match node.op:
            case ops.Generate() | ops.SetContext() | ops.Say():
                return False
            case ops.Search(turns=turns):
                return not turns
            case ops.Repeat(gather=gather):
                return (gather is None and _goes_on(node.body) is True) or ends_in_steps(node.body)
        if isinstance(node.op, _PARTS) and any(map(ends_in_steps, node.inside)):
            return True
    return False


def _goes_on(chain: Chain) -> bool | None:
    """Whether a round generates before it begins a turn; None where it does neither."""
    return next((found for node in chain if (found := _of(node)) is not None), None)


def _of(node: PhysicalOp) -> bool | None:
    match node.op:
        case ops.Generate():
            return True
        case ops.SetContext() | ops.Say():
            return False
    if isinstance(node.op, (*_PARTS, ops.Repeat, ops.Search)):
        inside = [_goes_on(chain) for chain in node.inside]
        return next((found for found in inside if found is not None), None)
    return None


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
