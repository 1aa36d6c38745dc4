"""Logical operators: what a program means, nothing of how it runs.

Every operator is frozen and checks itself where it is built. `stage` numbers the source stages of a program in
reading order, from 0; it is a part of the noise key (see `docs/architecture.md`), so a rewrite that moves an operator
keeps its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from typing import Literal as OneOf

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span

if TYPE_CHECKING:
    from qpdsl.planner.logical import LogicalPlan

Reduce = OneOf["last", "min", "mean", "prod", "sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Base of all operators: relation(s) of candidate rows in, relation out."""

    stage: int
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Start(Operator):
    """One row with an empty context: where every pipeline begins. In a `repeat` body: the rows of the round."""


@dataclass(frozen=True, slots=True)
class SetContext(Operator):
    """Starts each row's context: chat turns, or one plain prompt."""

    turns: tuple[ast.Turn, ...] = ()
    prompt: ast.Template | None = None

    def __post_init__(self) -> None:
        if bool(self.turns) == (self.prompt is not None):
            raise ValueError("a context is either chat turns or a prompt")


@dataclass(frozen=True, slots=True)
class Generate(Operator):
    """Each unfinished row becomes `n` rows that go on with tokens of `model`; finished rows pass as one row.

    The expressions read parameters only. `stop` is a string; `max_tokens` None means up to the context's end.
    """

    model: str
    n: ast.Expr
    temperature: ast.Expr
    top_p: ast.Expr | None = None
    top_k: ast.Expr | None = None
    min_p: ast.Expr | None = None
    stop: ast.Expr | None = None
    max_tokens: ast.Expr | None = None


@dataclass(frozen=True, slots=True)
class Score(Operator):
    """Adds the float column `into`: the verifier's step scores of the row's text, reduced to one number."""

    verifier: str
    reduce: Reduce
    into: str


@dataclass(frozen=True, slots=True)
class Extract(Operator):
    """Adds the text column `column`: the first match in the row's text, or the value at a JSON path; else none."""

    column: str
    pattern: ast.Regex | ast.JsonPath


@dataclass(frozen=True, slots=True)
class TopK(Operator):
    """The `k` rows with the greatest `by`, greatest first; ties go to the earlier row; none sorts last."""

    k: ast.Expr
    by: ast.Expr


@dataclass(frozen=True, slots=True)
class Vote(Operator):
    """One row: the best row (greatest weight, then earliest) of the value of `column` with the most weight."""

    column: str
    weight: ast.Expr | None


@dataclass(frozen=True, slots=True)
class Repeat(Operator):
    """Runs `body` on the rows until `until` holds, or `limit` times. `until` is tested before each round."""

    limit: ast.Expr
    until: ast.Expr | None
    body: LogicalPlan


@dataclass(frozen=True, slots=True)
class Return(Operator):
    """The program's value: an expression over the first row, with aggregates over all rows."""

    value: ast.Expr
