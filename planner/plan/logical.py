"""A program as the planner gets it: its parameters, its models and its logical plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.source import Source
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.ops import Operator
from qpdsl.planner.values.value import Value


@dataclass(frozen=True, slots=True)
class LogicalOp:
    """One operator of a plan, the columns of the rows that it makes (name → type, in order of appearance), and the
    plans of its blocks.
    """

    op: Operator
    columns: Mapping[str, str]
    inside: tuple[LogicalPlan, ...] = ()


# Operators in running order, each on the rows of the one before it; the last one's rows are the plan's.
LogicalPlan = tuple[LogicalOp, ...]


def operators(plan: LogicalPlan) -> Iterator[Operator]:
    """The operators of a plan with those of the plans inside them, each before what is inside it."""
    for node in plan:
        yield node.op
        for inner in node.inside:
            yield from operators(inner)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A program's parameter; `default` is None where the caller must give a value.

    `type` is that of its values, and `form` how the program declares it, empty where that is the same. `optional` says
    that a value may be none. `schema` is JSON Schema as text, which a value satisfies; None where the type says all.
    """

    name: str
    type: str
    default: ast.Expr | None
    optional: bool = False
    form: str = ""
    schema: str | None = field(default=None, repr=False)

    @property
    def declared(self) -> str:
        """The type as the program declares it."""
        return self.form or self.type


def default_values(params: Iterable[Parameter]) -> dict[str, Value]:
    """The values of the parameters that have a default. A default is a constant: it reads no other parameter."""
    return {param.name: evaluate(param.default, {}) for param in params if param.default is not None}


@dataclass(frozen=True, slots=True)
class OpenWidth:
    """A width of a way: its name, its value, and whether it is that of a parameter."""

    name: str
    number: int
    parameter: bool


@dataclass(frozen=True, slots=True)
class OpenStrategy:
    """One way of a program that leaves its arm or widths to a budget: an arm by its number and name, and widths.

    `program` is the ordinary program that it makes, in which parameters among the widths are parameters still.
    """

    arm: int
    head: str
    widths: tuple[OpenWidth, ...]
    program: LogicalProgram


@dataclass(frozen=True, slots=True)
class LogicalProgram:
    """One program, lowered and checked: what `planner.plan.naive.plan` takes.

    `source` is what its spans point into. `models` maps the names used in the program to model ids, in order of first
    use; the id of a model that is a parameter is empty until the caller gives one. `model_params` are these names.
    `record` is the JSON Schema, as text, of all that it returns; None where it is held to none.
    `score_column` names the column that a row's score is reported from (the last `score` stage's), None without one.
    `within` and `prefer` (λ) say how far a plan may go, and for what; `deadline` in how many seconds a problem is to be
    done. `ways` are those that it leaves open, for
    `budget` to choose among; it is then the first of them itself (see `planner/strategies`). `warnings` is what the
    checker would have said otherwise. `text` is the file that the program stands in, empty where it was not read from
    one.
    """

    name: str
    source: Source = field(repr=False)
    params: tuple[Parameter, ...]
    models: Mapping[str, str]
    plan: LogicalPlan
    returns: str
    record: str | None = field(default=None, repr=False)
    model_params: tuple[str, ...] = ()
    score_column: str | None = None
    within: ast.Within | None = None
    prefer: float | None = None
    budget: ast.Budget | None = None
    deadline: float | None = None
    ways: tuple[OpenStrategy, ...] = ()
    syntax: ast.Program | None = field(default=None, repr=False, compare=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), repr=False, compare=False)
    text: str = field(default="", repr=False, compare=False)
