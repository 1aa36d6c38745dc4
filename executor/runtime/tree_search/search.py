"""The loop of a search, and the rows that it comes to.

Where the block goes on with the row that it gets, its rows are parts of answers. A search then ends in finished rows:
those of its leaves, and those that rows were carried on to. `rollout` says which are: each new row, whose value is then
that of the row it came to; or at the end, where none is finished, the row at the end of the line of robust children.
An unfinished row comes out only where there is no finished one, so its value never competes with that of an answer.

A rollout takes one sample a step, by the block that makes children. Its path is that of its row, and (-1, 0), which no
child has: so it depends on the row alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.instance.operator_events import emit_values
from qpdsl.executor.runtime.instance.row_tasks import together
from qpdsl.executor.runtime.tree_search.ab_mcts import AdaptiveBranching, ArmBandit, BetaWorth, GaussianWorth
from qpdsl.executor.runtime.tree_search.hierarchical import HierarchicalBranching
from qpdsl.executor.runtime.tree_search.nodes import SearchNode, SearchPolicy
from qpdsl.executor.runtime.tree_search.puct import Puct
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.grammar import ast
from qpdsl.grammar.words import SEARCH_PRIOR, SEARCHED_COLUMNS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp

RunChain = Callable[[tuple[PhysicalOp, ...], Candidates, Instance], Awaitable[Candidates]]
# Blocks whose rows go on behind them; others hold conversations of their own.
_GOES_ON = (ops.Branch, ops.If, ops.Each, ops.Repeat)
# The weight of what was tried little where the program does not say.
_C = 1.4


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Of `parent`, the `number`th there; `arm` makes the child, None where all do."""

    tree: _Tree
    parent: SearchNode
    number: int
    arm: int | None


@dataclass(slots=True)
class _Tree:
    """A search below one row, with the expansions that are left to it."""

    root: SearchNode
    policy: SearchPolicy
    bandit: ArmBandit | None
    left: int

    def chosen(self, at_once: int) -> list[_Expansion]:
        """What to expand next."""
        chosen: list[_Expansion] = []
        while self.left and len(chosen) < at_once and (parent := self.policy.choose(self.root)) is not None:
            arm = None if self.bandit is None else self.bandit.choose()
            chosen.append(_Expansion(self, parent, parent.expansions - 1, arm))
            self.left -= 1
        return chosen


@dataclass(frozen=True, slots=True)
class _Found:
    """A row that an expansion made, what it is worth, and the finished row that it is or came to."""

    row: Row
    value: float | None
    ended: Row | None


async def search(node: PhysicalOp, rows: Candidates, instance: Instance, run: RunChain) -> Candidates:
    """The rows that the searches below each row come to, those of earlier rows first. `run` runs the body.

    Raises RowError where an option is out of range, or a value is that the policy has no place for.
    """
    op = node.op
    assert isinstance(op, ops.Search)
    simulations = instance.whole("simulations", op.simulations, rows)
    at_once = 1 if op.per_round is None else instance.whole("per_round", op.per_round, rows)
    c = instance.number("c", op.c, rows)
    growth = _Growth(node, op, instance, run)
    trees = [growth.tree(row, simulations, _C if c is None else c) for row in rows]
    while chosen := [expansion for tree in trees for expansion in tree.chosen(at_once)]:
        made = await together(growth.children(expansion) for expansion in chosen)
        instance.usage.counts["expansions"] += len(chosen)
        for expansion, found in zip(chosen, made, strict=True):
            growth.add(expansion, found)
        if instance.watched:
            growth.show(expansion.parent for expansion in chosen)
    ends = await together(growth.last_resort(tree.root) for tree in trees)
    return tuple(row for tree, end in zip(trees, ends, strict=True) for row in growth.result(tree.root, end))


@dataclass(frozen=True, slots=True)
class _Growth:
    """How the trees of one `search` grow."""

    node: PhysicalOp
    op: ops.Search
    instance: Instance
    run: RunChain

    def tree(self, row: Row, simulations: int, c: float) -> _Tree:
        op, chance = self.op, _chance(self.op, row, self.instance)
        worth = BetaWorth if op.prior == "beta" else GaussianWorth
        policy: SearchPolicy
        match op.method:
            case "puct":
                policy = Puct(c, op.backup)
            case "ab_mcts":
                policy = AdaptiveBranching(chance, worth)
            case "ab_mcts_m":
                policy = HierarchicalBranching(chance)
        bandit = None if op.arms is None else ArmBandit(self._arm_count(), op.arms, chance, worth)
        return _Tree(SearchNode(row, open=op.turns or not row.generated.finished), policy, bandit, simulations)

    def _arm_count(self) -> int:
        return next(len(node.arms) for node in self.node.body if isinstance(node.op, ops.Branch))

    def _block(self, arm: int | None) -> tuple[PhysicalOp, ...]:
        """The operators that make a child, by one arm of the `branch` among them or by all."""
        if arm is None:
            return self.node.body
        return tuple(
            replace(node, op=replace(node.op, only=arm)) if isinstance(node.op, ops.Branch) else node
            for node in self.node.body
        )

    async def children(self, expansion: _Expansion) -> list[_Found]:
        parent, block = expansion.parent, self._block(expansion.arm)
        row = replace(parent.row, path=(*parent.row.path, expansion.number))
        # Scores that another operator reads again are kept for one chain of rows.
        own = replace(self.instance, rounds=(*self.instance.rounds, parent.depth), ahead=None, steps={})
        made = await self.run(block, (row,), own)
        if self.op.turns or self.op.rollout not in ("greedy", "sampled"):
            return [_Found(row, self._value(row), row if row.generated.finished else None) for row in made]
        ends = await together(self._end(row, parent.depth + 1, expansion.arm) for row in made)
        return [
            _Found(row, None if end is None else self._value(end), end) for row, end in zip(made, ends, strict=True)
        ]

    async def _end(self, row: Row, depth: int, arm: int | None) -> Row | None:
        if row.generated.finished:
            return row
        self.instance.usage.counts["rollouts"] += 1
        chain = _step(self._block(arm), greedy=self.op.rollout != "sampled")
        return await _rolled_out(chain, row, depth, self.instance, self.run)

    def add(self, expansion: _Expansion, found: Sequence[_Found]) -> None:
        parent, tree = expansion.parent, expansion.tree
        added = []
        for one in found:
            child = parent.add(one.row, one.value, can_go_on=self.op.turns or not one.row.generated.finished)
            child.ended, child.arm = one.ended, expansion.arm
            added.append(child)
        tree.policy.expanded(parent, added)
        if tree.bandit is not None and expansion.arm is not None:
            tree.bandit.add(expansion.arm, [child.own for child in added if child.own is not None])

    def show(self, expanded: Iterable[SearchNode]) -> None:
        """Tells whoever watches what expansions of these nodes changed: visits, values, the children's priors."""
        parents = list(expanded)
        changed = {above: None for node in parents for below in (node, *node.children) for above in below.line()}
        nodes = [node for node in changed if node.parent is not None and node.visits]
        rows = [self._row(node, node.row, node.mean) for node in nodes]
        for column in SEARCHED_COLUMNS:
            emit_values(column, rows, self.instance, scores=False)
        if self.op.method == "puct":
            # There all children of a node are as likely.
            priors = {child: 1 / len(node.children) for node in parents for child in node.children}
            rows = [child.row.with_column(SEARCH_PRIOR, prior) for child, prior in priors.items()]
            emit_values(SEARCH_PRIOR, rows, self.instance, scores=False)

    async def last_resort(self, root: SearchNode) -> SearchNode | None:
        """Where nothing is finished, the row at the end of the robust line, carried on greedily; None without one."""
        if self.op.turns or self.op.rollout == "off" or any(node.ended is not None for node in root.below()):
            return None
        leaf = root
        while (child := leaf.robust()) is not None:
            leaf = child
        end = None if leaf is root else await self._end(leaf.row, leaf.depth, leaf.arm)
        if end is None:
            return None
        leaf.ended, leaf.own = end, self._value(end)
        return leaf

    def result(self, root: SearchNode, last: SearchNode | None) -> list[Row]:
        """The finished rows, those of the robust child first, by their values; all rows where each is an answer."""
        nodes = list(root.below())
        if not root.expansions:
            return [self._row(root, root.row, root.mean)]
        if self.op.turns:
            nodes.sort(key=lambda node: not node.row.generated.finished)
            return [self._row(node, node.row, node.mean) for node in nodes]
        robust = root.robust()
        of_robust = set() if robust is None else {robust, *robust.below()}
        ended = [node for node in nodes if node.ended is not None]
        if not ended:
            return [self._row(node, node.row, node.mean) for node in nodes if not node.expansions]
        ended.sort(key=lambda node: (node not in of_robust, node.own is None, -(node.own or 0.0)))
        return [self._row(node, node.ended, node.own) for node in ended if node.ended is not None]

    def _row(self, node: SearchNode, row: Row, value: float | None) -> Row:
        absent: Iterable[str] = self.node.columns
        shown = {"visits": node.visits, "value": None if value is None else round(value, SCORE_DIGITS)}
        return replace(row, columns={**dict.fromkeys(absent), **row.columns, **shown})

    def _value(self, row: Row) -> float | None:
        (found,) = self.instance.values(self.op.by, (row,))
        value = round(float(found), SCORE_DIGITS) if isinstance(found, (int, float)) else None
        is_share = self.op.method == "ab_mcts_m" or self.op.prior == "beta"
        if value is not None and is_share and not 0 <= value <= 1:
            who = f"`{self.op.method}`" if self.op.method == "ab_mcts_m" else "`prior=beta`"
            instead = "use `ab_mcts` with `prior=gaussian`"
            raise RowError(f"{who} takes values from 0 to 1, and `by` is {value:g}; {instead}")
        return value


def _chance(op: ops.Search, row: Row, instance: Instance) -> Random:
    """The random numbers of a search: they depend on what noise depends on."""
    key = instance.chance(op.stage, row.context, row.path)
    return Random(blake2b(key.to_bytes(8, "little"), digest_size=16).digest())


def _step(chain: tuple[PhysicalOp, ...], *, greedy: bool) -> tuple[PhysicalOp, ...]:
    """The operators of a block, each of whose `generate`s writes one sample."""
    return tuple(_one(node, greedy) for node in chain)


def _one(node: PhysicalOp, greedy: bool) -> PhysicalOp:
    if isinstance(node.op, ops.Generate):
        span = node.op.span
        op = replace(node.op, n=ast.Literal(1, span=span), first_tokens="drawn")
        return replace(node, op=replace(op, temperature=ast.Literal(0, span=span)) if greedy else op)
    if isinstance(node.op, _GOES_ON):
        arms = tuple(_step(arm, greedy=greedy) for arm in node.arms)
        return replace(node, body=_step(node.body, greedy=greedy), arms=arms)
    return node


async def _rolled_out(
    chain: tuple[PhysicalOp, ...], row: Row, depth: int, instance: Instance, run: RunChain
) -> Row | None:
    """The finished row that a row comes to at the end, `depth` steps below the root; None where it comes to none.

    `chain` writes one sample; of several rows that it makes, as by the arms of a `branch`, the first goes on.
    """
    now, step = replace(row, path=(*row.path, -1, 0)), depth
    while not now.generated.finished:
        own = replace(instance, rounds=(*instance.rounds, step), ahead=None, steps={})
        made = await run(chain, (now,), own)
        if not made or made[0].generated.tokens == now.generated.tokens:
            return None
        now, step = made[0], step + 1
    return now
