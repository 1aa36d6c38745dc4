"""Gives up samples that can no longer change a vote, and begins none that a vote `decided=` may not look at.

The `generate` that feeds the vote is run sample by sample, through the operators between, which must look at one row at
a time. Votes are counted, or weighted by a verifier's score in [0, 1]. The runtime knows the verifiers whose scores are
not in that range, and never decides such a vote early. Answers are compared as texts or as numbers: whether two are
equal as mathematics can depend on the order in which they come. Where somebody reads how sure the program is of its
answer, every row that counts must be known, so that only a vote `decided=` ends early.

A `keep m by -tokens` is such a choice too: a sample with more tokens than m that have ended cannot be kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import made_column
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import (
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    Strategy,
    VoteStrategy,
)
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
# Of scores in [0, 1] these are in [0, 1] too; a sum is not.
_BOUNDED = ("last", "min", "mean", "prod")
_ROW_BY_ROW = (ops.Extract, ops.StepScore, ops.LogProb, ops.DrawScore, ops.Let, ops.Where)


def decided_vote(plan: PhysicalPlan) -> PhysicalPlan:
    """Looks at the votes of the program's own chain: in a branch other rows may be waiting for the same samples."""
    chain = plan.ops
    for index, node in enumerate(chain):
        first = _feeding(chain, index)
        if first is None or not _is_bounded(node, chain[first:index]) or not _reads_allow(plan, index):
            continue
        if _are_read_again(chain[first:index], chain[index:]) or (plan.support and not _in_waves(node)):
            continue
        feeding, vote = chain[first], node
        assert isinstance(feeding.strategy, GenerateStrategy)
        changed = {
            first: decide(feeding, replace(feeding.strategy, vote=vote.id), NAME),
            index: decide(vote, VoteStrategy(decided=True, waves=_in_waves(vote), whole=plan.support), NAME),
        }
        chain = tuple(changed.get(at, same) for at, same in enumerate(chain))
    return with_ops(plan, chain)


def _feeding(chain: Chain, index: int) -> int | None:
    """The place of the `generate` that feeds the vote at `index`, with none but operators on single rows between."""
    vote = chain[index].op
    if not (_keeps_shortest(vote) or (isinstance(vote, ops.Vote) and vote.equal != "math" and vote.per is None)):
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


def _keeps_shortest(op: ops.Operator) -> bool:
    match op:
        case ops.Keep(by=ast.Unary(op="-", operand=ast.Name(id="tokens")), per=None, like=None, count=count):
            return not reads_all_rows(count)
    return False


def _is_bounded(node: PhysicalOp, between: Chain) -> bool:
    """Whether one row adds between 0 and 1 to its answer, a verifier's scores granted to be in [0, 1].

    Of a `keep`: whether `tokens` are those of the samples.
    """
    if isinstance(node.op, ops.Keep):
        return all(made_column(link.op) != "tokens" for link in between)
    assert isinstance(node.op, ops.Vote)
    weight = node.op.weight
    if weight is None:
        return True
    if not isinstance(weight, ast.Name):
        return False
    makers = [link.op for link in between if made_column(link.op) == weight.id]
    extracted = any(isinstance(maker, ops.Extract) for maker in makers)
    return bool(makers) and not extracted and isinstance(makers[-1], ops.StepScore) and makers[-1].reduce in _BOUNDED


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
        case GenerateStrategy(vote=str(vote)):
            yield f"to {vote} one by one"
        case VoteStrategy(decided=True, waves=True):
            yield "stops when decided, samples in waves"
        case VoteStrategy(decided=True):
            yield "stops when decided" if isinstance(node.op, ops.Vote) else "gives up what is longer"


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """The `generate` and the vote that it feeds are decided about together."""
    for feeding, decided in operator_pairs(plan, ruled):
        match decided.strategy, feeding.strategy:
            case GenerateStrategy(vote=str(vote)), GenerateStrategy() as strategy:
                knob = Knob(stage="vote", operator=vote)
                ends = VoteStrategy(decided=True, whole=plan.support)
                early: dict[str, Strategy] = {feeding.id: replace(strategy, vote=vote), vote: ends}
                late: dict[str, Strategy] = {feeding.id: replace(strategy, vote=None), vote: VoteStrategy()}
                if _in_waves(decided):
                    waves = {**early, vote: replace(ends, waves=True)}
                    yield Alternative(knob, "samples in waves until decided", with_strategies(plan, waves))
                yield Alternative(knob, "stops when decided", with_strategies(plan, early))
                yield Alternative(knob, "waits for all samples", with_strategies(plan, late))


def _drawing(strategy: GenerateStrategy, drawing: Drawing, given_up: float) -> Drawing:
    return drawing if strategy.vote is None else drawing._replace(sampled=drawing.sampled * (1 - given_up))


RULE = Rule(
    NAME,
    "cancel samples that can no longer change a vote, or be among the shortest",
    "exact",
    "after unread columns are dropped and samples are as short as possible",
    decided_vote,
    _words,
    _alternatives,
    effect=Effect("given_up", "", "given up", 0.0, _drawing),
)
