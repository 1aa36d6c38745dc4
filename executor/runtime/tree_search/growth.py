"""Runs a `search`: expansions, side by side as far as the program says, and the rows that come out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.instance.tasks import together
from qpdsl.executor.runtime.tree_search.ab_mcts import AdaptiveBranching
from qpdsl.executor.runtime.tree_search.puct import Puct
from qpdsl.executor.runtime.tree_search.search_tree import Policy, SearchNode
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp

RunChain = Callable[[tuple[PhysicalOp, ...], Candidates, Instance], Awaitable[Candidates]]
# The weight of what was tried little where the program does not say.
_C = 1.4


@dataclass(slots=True)
class _Tree:
    """A search below one row, with the expansions that are left to it."""

    root: SearchNode
    policy: Policy
    left: int


async def search(node: PhysicalOp, rows: Candidates, instance: Instance, run: RunChain) -> Candidates:
    """The rows that the searches below each row come to, those of earlier rows first. `run` runs the body.

    Raises RowError where an option is out of range.
    """
    op = node.op
    assert isinstance(op, ops.Search)
    simulations = instance.whole("simulations", op.simulations)
    at_once = 1 if op.per_round is None else instance.whole("per_round", op.per_round)
    c = instance.number("c", op.c)
    trees = [
        _Tree(
            SearchNode(row, open=op.turns or not row.generated.finished),
            Puct(_C if c is None else c) if op.method == "puct" else AdaptiveBranching(_chance(op, row, instance)),
            simulations,
        )
        for row in rows
    ]
    while chosen := [pair for tree in trees for pair in _chosen(tree, at_once)]:
        made = await together(_children(node, parent, number, instance, run) for _, parent, number in chosen)
        instance.usage.counts["expansions"] += len(chosen)
        for (tree, parent, _), children in zip(chosen, made, strict=True):
            added = [
                parent.add(row, _value(op, row, instance), can_go_on=op.turns or not row.generated.finished)
                for row in children
            ]
            tree.policy.expanded(parent, added)
    return tuple(row for tree in trees for row in _found(op, tree.root, node.columns))


def _chosen(tree: _Tree, at_once: int) -> list[tuple[_Tree, SearchNode, int]]:
    """The nodes to expand next, each with the number of the expansion there."""
    chosen: list[tuple[_Tree, SearchNode, int]] = []
    while tree.left and len(chosen) < at_once and (parent := tree.policy.choose(tree.root)) is not None:
        chosen.append((tree, parent, parent.expansions - 1))
        tree.left -= 1
    return chosen


async def _children(node: PhysicalOp, parent: SearchNode, number: int, instance: Instance, run: RunChain) -> Candidates:
    row = replace(parent.row, path=(*parent.row.path, number))
    # Scores that another operator reads again are kept for one chain of rows.
    own = replace(instance, rounds=(*instance.rounds, parent.depth), ahead=None, steps={})
    return await run(node.body, (row,), own)


def _value(op: ops.Search, row: Row, instance: Instance) -> float | None:
    (value,) = instance.values(op.by, (row,))
    return round(float(value), SCORE_DIGITS) if isinstance(value, (int, float)) else None


def _found(op: ops.Search, root: SearchNode, columns: Iterable[str]) -> list[Row]:
    """The leaves, or all rows that were made where each is an answer; finished ones first."""
    absent = dict.fromkeys(columns)
    nodes = [node for node in root.below() if op.turns or not node.expansions]
    if not root.expansions:
        nodes = [root]
    nodes.sort(key=lambda node: not node.row.generated.finished)
    return [
        replace(node.row, columns={**absent, **node.row.columns, "visits": node.visits, "value": _rounded(node.mean)})
        for node in nodes
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, SCORE_DIGITS)


def _chance(op: ops.Search, row: Row, instance: Instance) -> Random:
    """The random numbers of a search: they depend on what noise depends on."""
    assert row.context is not None
    (key,) = instance.keys(-1 - op.stage, row.context, (row.path,))
    return Random(blake2b(key.to_bytes(8, "little"), digest_size=16).digest())
