"""How one operator is to run: what the rules decided, for the runtime to do.

The defaults are the plainest way there is, which is what the naive plan uses. Nothing here changes what an operator
means.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.grammar import ast
from qpdsl.planner import ops


@dataclass(frozen=True, slots=True)
class GenerateHow:
    """How a `generate` runs.

    `share`: one prefill for the samples of a row, forked, and the prefix cache for what was computed before; else each
    sample is a request of its own that computes its whole prompt. `collapse`: samples that must be equal are drawn once
    and copied. `until`: a sample ends as soon as this pattern has matched and nothing that follows can change the
    match. `run_ahead`: how many steps a sample may go on past its stop while its row waits to be chosen (the thesis's
    decode-aware tree expansion); what the chosen rows can use is kept. `vote`: the operator (an id) that the rows go to
    one by one as they are done, through the operators between, and that can give up the rest.
    """

    share: bool = False
    collapse: bool = False
    until: ast.Regex | None = None
    run_ahead: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreHow:
    """How a `score` runs; that by a judge has the prefix cache alone to decide about.

    `share`: only what is new in a text is computed, on the prefix that is cached; else the whole text, every time.
    `cache`: the score of every step is kept by its content, and equal content is scored once. `same_as`: the operator
    (an id) whose scores of the same rows these are, read anew under another reduction.
    """

    share: bool = False
    cache: bool = False
    same_as: str | None = None


@dataclass(frozen=True, slots=True)
class VoteHow:
    """How a `vote` runs. `decided`: samples that can no longer change the winner are given up."""

    decided: bool = False


@dataclass(frozen=True, slots=True)
class BranchHow:
    """How a `branch` runs. `same_as`: for each arm the number of the arm before it whose rows it would make again."""

    same_as: tuple[int | None, ...] = ()


How = GenerateHow | ScoreHow | VoteHow | BranchHow


def plainest(op: ops.Operator) -> How | None:
    """The way in which the naive plan runs an operator; None where there is but one."""
    match op:
        case ops.Generate():
            return GenerateHow()
        case ops.Score() | ops.Judge():
            return ScoreHow()
        case ops.Vote():
            return VoteHow()
        case ops.Branch(arms=arms):
            return BranchHow((None,) * len(arms))
    return None
