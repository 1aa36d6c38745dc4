"""A file and what it declares."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field

from qpdsl.grammar.ast.clauses import DraftClause
from qpdsl.grammar.ast.expressions import Expr
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.ast.schemas import Schema, TypeExpr
from qpdsl.grammar.ast.stage import Stage
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.model_id import with_adapter, with_think
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import DELTA, BudgetUnit, WithinLevel


@dataclass(frozen=True, slots=True)
class Use(Node):
    """`use "file.qp" as NAME`: the models, schemas and programs that another file declares.

    With `alias` they have names of their own: `NAME.llm`. Without it they are named as in their file.
    """

    path: str
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Param(Node):
    """`name: type = default`; `optional` is `type?`, which may be none, and is so by default."""

    name: str
    type: TypeExpr
    default: Expr | None = None
    optional: bool = False
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Model(Node):
    """`model NAME = "id" kind=KIND adapter="place" think="<think>|</think>"`.

    `kind` says how a verifier scores, None where its own files are to tell. `adapter` is a folder or a hub id. `think`
    is what opens and closes the model's thoughts or `none`, None where its own files are to tell.
    """

    name: str
    id: str
    kind: str | None = None
    adapter: str | None = None
    think: str | None = None
    name_span: Span = field(compare=False, repr=False, kw_only=True)

    @property
    def whole_id(self) -> str:
        """The id with the adapter and with what is said of thoughts."""
        return with_think(with_adapter(self.id, self.adapter), self.think)


@dataclass(frozen=True, slots=True)
class Within(Node):
    """`within exact`, `within epsilon(1e-3)`, `within loss(0.02)`: how far a plan may go.

    `within replayable` and `within recorded` say it of models on servers: the same server gives the same samples again,
    or only what was kept of them comes again.
    """

    level: WithinLevel
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Budget(Node):
    """`within budget(tokens=2000)`: what a problem may take, on average over problems.

    `amount` counts tokens that a model draws, seconds of the engine, or the currency of the price table.

    `within accuracy(0.9, delta=0.05) or cost(0.02)`: the least that has a share `accuracy` of the problems right, which
    is promised with probability 1 - `delta`, or else the most right within the amount. Without `or` there is no amount.
    """

    unit: BudgetUnit
    amount: float | None
    accuracy: float | None = None
    delta: float = DELTA


@dataclass(frozen=True, slots=True)
class Deadline(Node):
    """`within deadline(2s)`: in how many seconds a problem is to be done, from when it begins."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Prefer(Node):
    """`prefer latency=0.8`: λ in λ·latency + (1−λ)·quality loss."""

    latency: float


@dataclass(frozen=True, slots=True)
class Like(Node):
    """`like search_and_learn`: the conventions of another system's search in the place of our own."""

    system: typing.Literal["search_and_learn"]


@dataclass(frozen=True, slots=True)
class Program(Node):
    """A program; `optional`: its result may be none, as `-> text?` says."""

    name: str
    params: tuple[Param, ...]
    returns: TypeExpr | None
    body: tuple[Stage, ...]
    within: Within | None = None
    prefer: Prefer | None = None
    draft: DraftClause | None = None
    like: Like | None = None
    budget: Budget | None = None
    deadline: Deadline | None = None
    optional: bool = False
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class File(Node):
    """One parsed `.qp` file.

    `errors` is what the parser found; a file with errors is fit for finding more of them and for nothing else.
    `complete` is False where faulty lines were left out to get here; `gaps` says where they stood.
    """

    source: Source = field(compare=False, repr=False)
    models: tuple[Model, ...]
    programs: tuple[Program, ...]
    schemas: tuple[Schema, ...] = ()
    uses: tuple[Use, ...] = ()
    complete: bool = field(default=True, compare=False)
    errors: tuple[Diagnostic, ...] = field(default=(), compare=False, repr=False)
    gaps: tuple[Span, ...] = field(default=(), compare=False, repr=False)
