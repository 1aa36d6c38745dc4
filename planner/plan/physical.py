"""The physical plan: operators with an implementation, an equivalence class and an estimate.

MERGED: How one operator is to run: what the rules decided, for the runtime to do.

The defaults are the plainest way there is, which is what the naive plan uses. Nothing here changes what an operator
means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import Parameter
from qpdsl.planner.plan.ops import Operator


@dataclass(frozen=True, slots=True)
class GenerateStrategy:
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
class ScoreStrategy:
    """How a `score` runs; that by a judge has the prefix cache alone to decide about.

    `share`: only what is new in a text is computed, on the prefix that is cached; else the whole text, every time.
    `cache`: the score of every step is kept by its content, and equal content is scored once. `same_as`: the operator
    (an id) whose scores of the same rows these are, read anew under another reduction.
    """

    share: bool = False
    cache: bool = False
    same_as: str | None = None


@dataclass(frozen=True, slots=True)
class VoteStrategy:
    """How a `vote` runs. `decided`: samples that can no longer change the winner are given up."""

    decided: bool = False


@dataclass(frozen=True, slots=True)
class BranchStrategy:
    """How a `branch` runs. `same_as`: for each arm the number of the arm before it whose rows it would make again."""

    same_as: tuple[int | None, ...] = ()


Strategy = GenerateStrategy | ScoreStrategy | VoteStrategy | BranchStrategy


def plainest(op: ops.Operator) -> Strategy | None:
    """The way in which the naive plan runs an operator; None where there is but one."""
    match op:
        case ops.Generate():
            return GenerateStrategy()
        case ops.Score() | ops.Judge():
            return ScoreStrategy()
        case ops.Vote():
            return VoteStrategy()
        case ops.Branch(arms=arms):
            return BranchStrategy((None,) * len(arms))
    return None


Equivalence = OneOf["exact", "epsilon", "lossy"]
# Keys and values in eight bits.
KVType = OneOf["int8", "fp8"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operator is expected to take for one problem of many, over the rounds of an enclosing `repeat`.

    `cached_tokens` are those of `prompt_tokens` whose KV is found; tokens are counted as `Usage` counts them.
    """

    seconds: float
    prompt_tokens: float
    cached_tokens: float
    sampled_tokens: float


@dataclass(frozen=True, slots=True)
class PhysicalOp:
    """One operator as it will run.

    `id` is stable for a program ("0", "1", "3.0" for the first operator of operator 3's body, "3.1.0" for that of its
    second arm). `rows` estimates the rows it makes in all, over the rounds of an enclosing `repeat`, None where that
    hangs on a parameter without a default. `body` is what a `repeat` runs; `arms` what a `branch` does, where an arm
    without operators passes the rows as they are. `strategy` is what the rules decided, by `rules`; `cost` an estimate.
    """

    id: str
    op: Operator
    implementation: str
    equivalence: Equivalence
    rows: float | None
    inputs: tuple[str, ...]
    columns: Mapping[str, str]
    body: tuple[PhysicalOp, ...] = ()
    arms: tuple[tuple[PhysicalOp, ...], ...] = ()
    strategy: Strategy | None = None
    rules: tuple[str, ...] = ()
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Operators in running order; the last one's rows are the program's.

    A parameter's `default` is the value that the estimates go by; `declared` holds the defaults of the program's text.
    `equivalence` is what the plan keeps to, `within` what the program permits; `prefer` is its λ, if it has one.
    `reads` are the columns of the last rows that whoever runs the plan looks at, besides the value that it returns;
    None means all. `in_flight` is how many problems run at once, None where nothing was decided; `floor` the fewest
    sequences that the engine should have to work at: below it another problem starts, and samples run ahead. `rules`
    are the names of the rules that made the plan what it is, those that a choice by cost turned back left out; `chosen`
    is true where such a choice changed it. `kv_type` is how keys and values are kept, None for the models' own type.
    """

    name: str
    source_name: str
    params: tuple[Parameter, ...]
    declared: Mapping[str, ast.Expr | None]
    models: Mapping[str, str]
    ops: tuple[PhysicalOp, ...]
    returns: str
    score_column: str | None
    equivalence: Equivalence
    within: str = "exact"
    prefer: float | None = None
    reads: tuple[str, ...] | None = None
    in_flight: int | None = None
    floor: int = 0
    rules: tuple[str, ...] = ()
    chosen: bool = False
    kv_type: KVType | None = None


def everything(chain: tuple[PhysicalOp, ...]) -> Iterator[PhysicalOp]:
    """The operators with those inside them, in running order."""
    for op in chain:
        yield op
        yield from everything(op.body)
        for arm in op.arms:
            yield from everything(arm)
