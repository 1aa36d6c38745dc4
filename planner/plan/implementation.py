"""What runs an operator, in a few words: the implementation there is, and what the rules decided about it."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import BranchStrategy, GenerateStrategy, Strategy, ScoreStrategy, VoteStrategy

_IMPLEMENTATIONS: dict[type[ops.Operator], str] = {
    ops.SetContext: "template",
    ops.Score: "paged prefill",
    ops.Judge: "judge · greedy decode",
    ops.LogProb: "rows",
    ops.PythonScore: "python",
    ops.Extract: "rows",
    ops.PythonExtract: "python",
    ops.Where: "rows",
    ops.TopK: "rows",
    ops.Vote: "rows",
    ops.Split: "rows",
    ops.Branch: "arms",
    ops.Assign: "rows",
    ops.Repeat: "loop",
    ops.Peek: "rows",
    ops.Return: "rows",
}


def implementation(op: ops.Operator, strategy: Strategy | None) -> str:
    """Its parts are set apart by ` · `; where nothing is done but to look at rows, it is `rows`."""
    words = [_base(op), *_decided(op, strategy)]
    return " · ".join(words[1:] if words[0] == "rows" and len(words) > 1 else words)


def _base(op: ops.Operator) -> str:
    if not isinstance(op, ops.Generate):
        return _IMPLEMENTATIONS[type(op)]
    if isinstance(op.via, ops.Filter):
        return "filter · plain"
    head = "early exit" if isinstance(op.via, ops.Amortized) else "dense head"
    return f"paged decode · {head}" + (" · llguidance mask" if op.constraint is not None else "")


def _decided(op: ops.Operator, strategy: Strategy | None) -> Iterator[str]:
    match strategy:
        case GenerateStrategy():
            if strategy.share:
                yield "prefix shared"
            if strategy.collapse:
                yield "drawn once"
            if strategy.until is not None:
                yield "until matched"
            if strategy.vote is not None:
                yield f"to {strategy.vote} one by one"
            if strategy.run_ahead:
                yield f"run-ahead {strategy.run_ahead}"
        case ScoreStrategy():
            if strategy.same_as is not None:
                yield f"as {strategy.same_as}"
            if strategy.share:
                yield "prefix shared" if isinstance(op, ops.Judge) else "incremental"
            if strategy.cache:
                yield "score cache"
        case VoteStrategy(decided=True):
            yield "stops when decided"
        case BranchStrategy(same_as=same_as):
            for arm, first in enumerate(same_as, 1):
                if first is not None:
                    yield f"arm {arm} as arm {first + 1}"
