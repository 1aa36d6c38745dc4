"""Gives up samples that can no longer change a vote or be kept, and begins none that a vote `decided=` may not look at.

The `generate` that feeds the vote or `keep` is run sample by sample, through the operators between, which must look at
one row at a time. What a sample that goes on can still come to is a range (`planner/plan/ranges.py`): it only gets more
tokens and a lower log-probability, and a verifier's score is in [0, 1]. The runtime knows the verifiers whose scores
are not in that range, and never decides early by these. Answers are compared as texts or as numbers: whether two are
equal as mathematics can depend on the order in which they come. Where somebody reads how sure the program is of its
answer, every row that counts must be known, so that only a vote `decided=` ends early; of a `keep` that is the key of
the row that it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import (
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    Strategy,
    VoteStrategy,
)
from qpdsl.planner.plan.ranges import ANY, FALLING, IN_UNIT, Interval, range_of, range_of_value, ranges_after
from qpdsl.planner.plan.reads import column_expressions, reads, reads_all_rows, reported
from qpdsl.planner.plan.rule import (
    Alternative,
    Chain,
    Drawing,
    Effect,
    Knob,
    Rule,
    decide,
    operator_pairs,
    with_ops,
    with_strategies,
)

NAME = "decided_vote"
# So many tokens show whether a key falls with them.
_MANY = 1_000_000
_ROW_BY_ROW = (ops.Extract, ops.StepScore, ops.LogProb, ops.DrawScore, ops.Let, ops.Where)


def decided_vote(plan: PhysicalPlan) -> PhysicalPlan:
    """Looks at the votes of the program's own chain: in a branch other rows may be waiting for the same samples."""
    chain = plan.ops
    for index, node in enumerate(chain):
        first = _feeding(chain, index)
        if first is None or not _is_bounded(plan, chain[first : index + 1]) or not _reads_allow(plan, index):
            continue
        shares = isinstance(node.op, ops.Vote) and not _in_waves(node)
        if _are_read_again(chain[first:index], chain[index:]) or (plan.support and shares):
            continue
        feeding, vote = chain[first], node
        assert isinstance(feeding.strategy, GenerateStrategy) and isinstance(vote.strategy, VoteStrategy)
        waves = vote.strategy.waves or _in_waves(vote) or _falls_with_logprob(plan, chain[first : index + 1])
        ends = VoteStrategy(decided=True, waves=waves, whole=plan.support)
        changed = {
            first: decide(feeding, replace(feeding.strategy, vote=vote.id), NAME),
            index: decide(vote, ends, NAME),
        }
        chain = tuple(changed.get(at, same) for at, same in enumerate(chain))
    return with_ops(plan, chain)


def _feeding(chain: Chain, index: int) -> int | None:
    """The place of the `generate` that feeds the vote at `index`, with none but operators on single rows between."""
    vote = chain[index].op
    if not (_keeps_best(vote) or (isinstance(vote, ops.Vote) and vote.equal != "math" and vote.per is None)):
        return None
    for at in range(index - 1, -1, -1):
        op = chain[at].op
        if isinstance(op, ops.Generate):
            # One sample of one row cannot be decided before it has ended; options and filters walk by themselves.
            alone = isinstance(op.n, ast.Literal) and op.n.value == 1
            strategy = chain[at].strategy
            whole = isinstance(strategy, GenerateStrategy) and strategy.decode.whole
            return at if whole and not alone else None
        if not isinstance(op, _ROW_BY_ROW) or any(map(reads_all_rows, column_expressions(op))):
            return None
    return None


def _keeps_best(op: ops.Operator) -> bool:
    match op:
        case ops.Keep(by=by, per=None, like=None, count=count):
            return not reads_all_rows(count) and not reads_all_rows(by)
    return False


def _is_bounded(plan: PhysicalPlan, nodes: Chain) -> bool:
    """Whether what a sample can come to is known before it has ended.

    Of a vote: whether one row adds something between 0 and a number to its answer. Of a `keep`: whether a sample's key
    falls while it goes on, by more tokens or by the scores of its steps.
    """
    op, between = nodes[-1].op, nodes[1:-1]
    if isinstance(op, ops.Vote):
        weight = Interval(1, 1) if op.weight is None else _key_range(plan, nodes, op.weight)
        return weight.low >= 0 and weight.high < math.inf
    feeding = nodes[0].op
    assert isinstance(op, ops.Keep) and isinstance(feeding, ops.Generate)
    if plan.remote_model(feeding.model.name) is not None:
        # Its tokens are not those that are known here.
        return False
    early = _key_range(plan, nodes, op.by).high
    if early == math.inf:
        return False
    drawn = _key_range(plan, nodes, op.by, drawn=True, unlikely=True).high
    return drawn < early or any(falls(plan, nodes, link) for link in between)


def _falls_with_logprob(plan: PhysicalPlan, nodes: Chain) -> bool:
    """Whether a `keep` goes by the log-probability, which tells little before some samples are whole."""
    op = nodes[-1].op
    if not isinstance(op, ops.Keep):
        return False
    return _key_range(plan, nodes, op.by, unlikely=True).high < _key_range(plan, nodes, op.by).high


def falls(plan: PhysicalPlan, nodes: Chain, link: PhysicalOp) -> bool:
    """Whether the last of `nodes` goes by a key or a weight that falls with the step scores that `link` makes."""
    last = nodes[-1].op
    if not isinstance(last, ops.Vote | ops.Keep) or not isinstance(link.op, ops.StepScore):
        return False
    key = last.by if isinstance(last, ops.Keep) else last.weight
    if key is None or link.op.reduce not in FALLING or link.op.of is not None or link.op.raw:
        return False
    return _key_range(plan, nodes, key, low=link).high < _key_range(plan, nodes, key).high


def _key_range(
    plan: PhysicalPlan,
    nodes: Chain,
    key: ast.Expr,
    *,
    drawn: bool = False,
    unlikely: bool = False,
    low: PhysicalOp | None = None,
) -> Interval:
    """The range of a key over what the first of `nodes` samples.

    Once a lot is `drawn`, and that is `unlikely`, or where `low` has scored it 0.

    Parameters without a value are taken to be 1, and columns to be 0: what is found tells whether the rule is of use.
    """
    feeding = nodes[0].op
    values = plan.values()
    names = {param.name: range_of_value(values.get(param.name, 1)) for param in plan.params}
    names |= {name: range_of_value(0) for name, type_ in nodes[0].columns.items() if type_ in ("int", "float")}
    tokens = Interval(_MANY if drawn else 0, sure=True)
    thinks = isinstance(feeding, ops.Generate) and feeding.only != "answer"
    names |= {"tokens": tokens, "thought_tokens": tokens if thinks else Interval(0, sure=True)}
    names |= {"logprob": Interval(high=-_MANY if unlikely else 0.0, sure=True)}

    def of_score(op: ops.StepScore) -> Interval:
        if low is not None and op is low.op:
            return Interval(0, 0)
        return Interval(0, 1) if op.reduce in IN_UNIT else ANY

    return range_of(key, ranges_after((node.op for node in nodes[1:-1]), names, of_score))


def _are_read_again(between: Chain, rest: Chain) -> bool:
    """Whether an operator after the vote has the scores of one before it, which keeps those of the last rows alone."""
    scorers = {node.id for node in between}
    return any(isinstance(node.strategy, ScoreStrategy) and node.strategy.same_as in scorers for node in rest)


def _reads_allow(plan: PhysicalPlan, index: int) -> bool:
    """Whether the row that the vote makes is certain as soon as its winner is, as far as it is read.

    Where votes are counted the row is the winner's first, and the runtime waits until that is certain. Where they are
    weighed it is the heaviest, which any sample may still become; so nothing but the voted value may be read of it.
    """
    vote = plan.ops[index].op
    if not isinstance(vote, ops.Vote) or vote.weight is None:
        return True
    rest = plan.ops[index + 1 :]
    if vote.equal != "text" or not all(isinstance(link.op, ops.Return) for link in rest):
        return False
    last = rest[-1].op
    parses = isinstance(last, ops.Return) and last.parse
    return not parses and (reads(rest[-1]) | reported(plan)) <= {vote.column.id}


def _in_waves(node: PhysicalOp) -> bool:
    """Whether a vote ends when it is sure: most samples are likely not to be looked at."""
    return isinstance(node.op, ops.Vote) and node.op.decided is not None


def _words(node: PhysicalOp) -> Iterator[str]:
    match node.strategy:
        case GenerateStrategy(vote=str()):
            yield "each goes on once drawn"
        case VoteStrategy(decided=True, waves=waves):
            does = "stops when decided" if isinstance(node.op, ops.Vote) else "gives up what it cannot keep"
            yield f"{does}, samples in waves" if waves else does


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """The `generate` and the vote that it feeds are decided about together."""
    for feeding, decided in operator_pairs(plan, ruled):
        match decided.strategy, feeding.strategy:
            case GenerateStrategy(vote=str(vote)), GenerateStrategy() as strategy:
                last = next(node for node in ruled.ops if node.id == vote)
                assert isinstance(last.strategy, VoteStrategy)
                knob = Knob(stage="vote" if isinstance(last.op, ops.Vote) else "keep", operator=vote)
                early: dict[str, Strategy] = {feeding.id: replace(strategy, vote=vote), vote: last.strategy}
                late: dict[str, Strategy] = {feeding.id: replace(strategy, vote=None), vote: VoteStrategy()}
                if _in_waves(last):
                    yield Alternative(knob, "samples in waves until decided", with_strategies(plan, early))
                    early = {**early, vote: replace(last.strategy, waves=False)}
                yield Alternative(knob, "stops when decided", with_strategies(plan, early))
                yield Alternative(knob, "waits for all samples", with_strategies(plan, late))


def _drawing(strategy: GenerateStrategy, drawing: Drawing, given_up: float) -> Drawing:
    return drawing if strategy.vote is None else drawing._replace(sampled=drawing.sampled * (1 - given_up))


RULE = Rule(
    NAME,
    "cancel samples that can no longer change a vote, or be among those that are kept",
    "exact",
    "after unread columns are dropped and samples are as short as possible",
    decided_vote,
    _words,
    _alternatives,
    effect=Effect("given_up", "", "given up", 0.0, _drawing),
)
