"""What runs an operator, in a few words: the implementation there is, and what the rules decided about it."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import BranchHow, GenerateHow, How, ScoreHow, VoteHow

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


def implementation(op: ops.Operator, how: How | None) -> str:
    """Its parts are set apart by ` · `; where nothing is done but to look at rows, it is `rows`."""
    words = [_base(op), *_decided(op, how)]
    return " · ".join(words[1:] if words[0] == "rows" and len(words) > 1 else words)


def _base(op: ops.Operator) -> str:
    if not isinstance(op, ops.Generate):
        return _IMPLEMENTATIONS[type(op)]
    if isinstance(op.via, ops.Filter):
        return "filter · plain"
    head = "early exit" if isinstance(op.via, ops.Amortized) else "dense head"
    return f"paged decode · {head}" + (" · llguidance mask" if op.constraint is not None else "")


def _decided(op: ops.Operator, how: How | None) -> Iterator[str]:
    match how:
        case GenerateHow():
            if how.share:
                yield "prefix shared"
            if how.collapse:
                yield "drawn once"
            if how.until is not None:
                yield "until matched"
            if how.vote is not None:
                yield f"to {how.vote} one by one"
            if how.run_ahead:
                yield f"run-ahead {how.run_ahead}"
        case ScoreHow():
            if how.same_as is not None:
                yield f"as {how.same_as}"
            if how.share:
                yield "prefix shared" if isinstance(op, ops.Judge) else "incremental"
            if how.cache:
                yield "score cache"
        case VoteHow(decided=True):
            yield "stops when decided"
        case BranchHow(same_as=same_as):
            for arm, first in enumerate(same_as, 1):
                if first is not None:
                    yield f"arm {arm} as arm {first + 1}"
