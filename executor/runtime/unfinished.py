"""Whether what a program gives back is a row that was left before its end.

A `repeat` or a `search` goes on with rows step by step until they are finished. Where it stops before that, its result
is a part of an answer, which looks like one. A `generate` with a `stop` outside of them writes what it is meant to.
"""

from __future__ import annotations

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp
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
