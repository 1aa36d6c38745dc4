"""A program as the planner gets it: its parameters, its models and its logical plan, and how such a plan is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import networkx as nx

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.ops import LogicalPlan, Operator, Start
from qpdsl.planner.values.value import Value


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
class OpenWay:
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

    `models` maps the names used in the program to model ids, in order of first use; the id of a model that is a
    parameter is empty until the caller gives one. `model_params` are these names. `score_column` names the column
    that a row's score is reported from (the last `score` stage's), None without one. `within` and `prefer` (λ) say how
    far a plan may go, and for what. `ways` are those that it leaves open, for `budget` to choose among; it is then the
    first of them itself (see `planner/ways`). `warnings` is what the checker would have said otherwise. `text` is the
    file that the program stands in, empty where it was not read from one.
    """

    name: str
    source_name: str
    params: tuple[Parameter, ...]
    models: Mapping[str, str]
    plan: LogicalPlan
    returns: str
    model_params: tuple[str, ...] = ()
    score_column: str | None = None
    within: ast.Within | None = None
    prefer: float | None = None
    budget: ast.Budget | None = None
    ways: tuple[OpenWay, ...] = ()
    syntax: ast.Program | None = field(default=None, repr=False, compare=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), repr=False, compare=False)
    text: str = field(default="", repr=False, compare=False)


class PlanBuilder:
    """A plan under construction, in which each operator reads the one before it.

    Operators are keyed by their stage, the start by `start`.
    """

    def __init__(self, start: Start, columns: Mapping[str, str]) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self._last = "start"
        self._graph.add_node("start", op=start, columns=dict(columns))

    def add(self, op: Operator, columns: Mapping[str, str]) -> None:
        """Appends an operator that makes a relation of these columns."""
        node = str(op.stage)
        self._graph.add_node(node, op=op, columns=dict(columns))
        self._graph.add_edge(self._last, node)
        self._last = node

    def done(self) -> LogicalPlan:
        """The plan as it stands, frozen."""
        return LogicalPlan(nx.freeze(self._graph), self._last)
