"""Which ways draw all that a narrower way draws.

The samples of `n=4` are the first four of `n=16`, and so they are after a `split` as long as its copies never meet: a
later `keep … per group` goes on with some of a copy's own rows, and a `vote` at the end draws nothing. Where rows are
compared with those of other copies before more is drawn, which are kept depends on the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import PhysicalOp, everything
from qpdsl.run_store.fingerprint import operators

Chain = tuple[PhysicalOp, ...]
# What makes the rows of each row by itself, and draws the same whatever other rows there are.
_APART = (
    ops.SetContext,
    ops.Say,
    ops.Generate,
    ops.Score,
    ops.Judge,
    ops.Prob,
    ops.LogProb,
    ops.DrawScore,
    ops.Equal,
    ops.ValidJson,
    ops.Passes,
    ops.Extract,
)


def nested_ways(chains: Sequence[Chain]) -> frozenset[tuple[int, int]]:
    """The pairs (a, b) of numbers of naive plans in which plan b draws all that plan a draws, and perhaps more."""
    numbers = range(len(chains))
    return frozenset((a, b) for a in numbers for b in numbers if a != b and draws_all_of(chains[b], chains[a]))


def draws_all_of(wider: Chain, other: Chain) -> bool:
    """Whether `wider` differs from `other` in nothing but a greater number of copies that never meet."""
    pairs = list(zip(wider, other, strict=False))
    fan = next((place for place, (one, two) in enumerate(pairs) if operators([one]) != operators([two])), None)
    if fan is None or len(wider) != len(other):
        return False
    rest = wider[fan + 1 :]
    if operators(rest) != operators(other[fan + 1 :]) or not _is_wider(wider[fan].op, other[fan].op):
        return False
    drawing = [place for place, node in enumerate(rest) if _draws(node)]
    split = isinstance(wider[fan].op, ops.Split)
    return all(_is_apart(node, split=split) for node in rest[: max(drawing, default=-1) + 1])


def _is_wider(one: ops.Operator, other: ops.Operator) -> bool:
    """Whether they are the same fan-out but for their numbers of copies, of which the first has more."""
    match one, other:
        case ops.Split(by=None), ops.Split():
            widths = one.count, other.count
            same = replace(other, count=one.count) == one
        case ops.Generate(), ops.Generate():
            widths = one.n, other.n
            same = replace(other, n=one.n) == one
        case _:
            return False
    first, second = (getattr(constant(width), "value", None) for width in widths)
    return same and isinstance(first, int) and isinstance(second, int) and first > second


def _draws(node: PhysicalOp) -> bool:
    return any(isinstance(inner.op, ops.Generate) for inner in everything((node,)))


def _is_apart(node: PhysicalOp, *, split: bool) -> bool:
    """Whether rows of different copies have no part in each other. `split`: the copies are those of a `split`."""
    op = node.op
    if isinstance(op, ops.Repeat):
        return _ends_by_itself(op.until) and all(_is_apart(inner, split=split) for inner in node.body)
    if isinstance(op, ops.Peek):
        return all(_is_apart(inner, split=split) for inner in node.body)
    if isinstance(op, ops.TopK):
        # Only a `split` numbers groups; all copies of a `generate` are of one.
        return split and op.per == "group"
    return isinstance(op, _APART)


def _ends_by_itself(until: ast.Expr | None) -> bool:
    """Whether a loop goes on for other rows without drawing more in those that have ended."""
    if not isinstance(until, ast.Apply):
        return until is None
    return until.function == "all" and [getattr(part, "id", None) for part in until.args] == ["finished"]
