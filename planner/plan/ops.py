"""Logical operators: what a program means, and nothing about how it runs.

Every operator is frozen and checks itself where it is built: one without a meaning raises `InvalidPlan`. Whether
the value of an expression is in its range depends on the arguments, so that is left to the checker and the runtime.
`stage` numbers the source stages of a program in reading order, from 0; it is a part of the noise key (see
`docs/architecture.md`), so a rewrite that moves an operator keeps its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal as OneOf
from typing import get_args

import networkx as nx

from qpdsl.grammar import ast
from qpdsl.grammar.ast.expressions import present
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import CONFIDENCES, MOST_DRAFTED, Confidence, DraftMethod

Reduce = OneOf["last", "min", "mean", "prod", "sum"]
LogProbReduce = OneOf["sum", "mean"]
Equality = OneOf["text", "number", "math"]
ConstraintKind = OneOf["json_schema", "regex", "choice", "grammar"]
# How many tokens a draft has one after another where nobody says: a chain, and a tree.
DRAFTED, DRAFTED_LEVELS = 8, 3
# Fields that name models.
_MODELS = ("model", "verifier")


class InvalidPlan(RuntimeError):
    """A plan, or a part of one, that breaks its own rules: a fault of the planner, never of the program."""


def require(condition: bool, message: str) -> None:
    """Raises InvalidPlan with the message unless the condition holds."""
    if not condition:
        raise InvalidPlan(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Base of all operators: relation(s) of candidate rows in, relation out.

    The start of a program has the stage -1. No name or word that an operator holds is empty. Names of models are left
    to the checker, which builds operators of programs with errors too.
    """

    stage: int
    span: Span = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(self.stage >= -1, f"{name}: there is no stage {self.stage}")
        for part in fields(self):
            require(part.name in _MODELS or getattr(self, part.name) != "", f"{name}: `{part.name}` is empty")
        self._check()

    def _check(self) -> None:
        """Raises InvalidPlan where the operator's parts do not go together."""


@dataclass(frozen=True, slots=True)
class Start(Operator):
    """One row with an empty context: where every pipeline begins. In a `repeat` body: the rows of the round."""


@dataclass(frozen=True, slots=True)
class SetContext(Operator):
    """Starts each row's context with chat turns or one plain prompt; appends to a context that has been started.

    What was generated since then stands in the longer context as the assistant's turn, or as more of the prompt. The
    expressions read a row's columns and the parameters.
    """

    turns: tuple[ast.Turn, ...] = ()
    prompt: ast.Template | None = None

    def _check(self) -> None:
        require(bool(self.turns) != (self.prompt is not None), "a context is either chat turns or a prompt")


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output is held to, checked to compile.

    `source` is JSON Schema as JSON text, a regex, a JSON list of the options, or a llguidance Lark grammar, such that
    llguidance can hold to it. `name` is what the program calls it. `schema` is the JSON Schema that the program gives,
    which every record must satisfy; empty for other kinds.
    """

    kind: ConstraintKind
    source: str
    name: str
    schema: str = ""

    def __post_init__(self) -> None:
        require(self.kind in get_args(ConstraintKind), f"there is no constraint `{self.kind}`")


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter decoding: the token that `model` draws stands where its confidence is over `threshold`.

    `by` is what the confidence is: exp(−NLL) of the drawn token, the lead p1 − p2 of the likeliest one, or 1 − H/ln V
    of the distribution. `share`, in the place of a threshold, holds the threshold where the larger model draws that
    share of a sample's tokens.
    """

    model: str
    threshold: ast.Expr | None = None
    by: Confidence = "probability"
    share: ast.Expr | None = None

    def __post_init__(self) -> None:
        require(self.by in CONFIDENCES, f"there is no confidence `{self.by}`")
        require((self.threshold is None) != (self.share is None), "a filter has a threshold or a share")

    @property
    def numbers(self) -> tuple[tuple[str, ast.Expr], ...]:
        """The expressions, by the names of their ranges."""
        return present(threshold=self.threshold, share=self.share)


@dataclass(frozen=True, slots=True)
class Amortized:
    """Leave after `layer` layers where the margin there, p1 − p2 over the allowed ids, is at or over `margin`.

    Without `layer`: that of the head, or else the middle one. Where the margin is smaller, all layers decide; with
    `rerank` they choose among so many ids, those that lead at the exit. `head` is the folder of an exit head
    (`qpdsl calibrate`); without one the model's own is used. With `certify` the token of the exit stands only where it
    leads by more than 2·`certify`/T, in logits with their noise, or 2·`certify` where T is 0.
    """

    margin: ast.Expr | None = None
    layer: ast.Expr | None = None
    rerank: ast.Expr | None = None
    head: str | None = None
    certify: ast.Expr | None = None

    def __post_init__(self) -> None:
        require(self.margin is not None or self.certify is not None, "an early exit has a margin or a certificate")
        require(self.head != "", "an exit head has a folder")

    @property
    def numbers(self) -> tuple[tuple[str, ast.Expr], ...]:
        """The expressions, by the names of their ranges."""
        return present(margin=self.margin, layer=self.layer, rerank=self.rerank, certify=self.certify)


@dataclass(frozen=True, slots=True)
class Draft:
    """Where a program wants tokens proposed from, at most `tokens` one after another. It changes no token.

    `model` is what drafts, for "model" and "eagle": a name of the plan's, or the folder of the head. `texts` are what
    "ngram" looks into besides the sample and its prompt. With `branches` above 1 a token may be followed by so many.
    `none` means no drafts at all, the planner's own included.
    """

    method: DraftMethod
    model: str | None = None
    texts: str = field(default="", repr=False)
    tokens: int = DRAFTED
    branches: int = 1

    def __post_init__(self) -> None:
        require(self.method in get_args(DraftMethod), f"there is no way to draft `{self.method}`")
        require((self.model is not None) == (self.method in ("model", "eagle")), "only a model or a head has a name")
        require(drafted(self.tokens, self.branches) <= MOST_DRAFTED, f"a draft has at most {MOST_DRAFTED} tokens")


def drafted(tokens: int, branches: int) -> int:
    """The tokens of a whole draft of so many one after another, each with so many that may follow it."""
    return sum(branches**level for level in range(1, tokens + 1)) if branches > 1 else tokens


def usual_length(branches: int) -> int:
    """How many tokens one after another are drafted where nobody says: a tree has fewer than a chain."""
    if branches == 1:
        return DRAFTED
    return max(
        length for length in range(1, DRAFTED_LEVELS + 1) if length == 1 or drafted(length, branches) <= MOST_DRAFTED
    )


@dataclass(frozen=True, slots=True)
class Generate(Operator):
    """Each unfinished row becomes `n` rows that go on with tokens of `model`; finished rows pass as one row.

    The expressions read parameters only. `stop` is a string; `max_tokens` None means up to the context's end. Beside a
    filter there is no `choice`. `draft` is the program's wish, None where it says nothing.
    """

    model: str
    n: ast.Expr
    temperature: ast.Expr
    top_p: ast.Expr | None = None
    top_k: ast.Expr | None = None
    min_p: ast.Expr | None = None
    stop: ast.Expr | None = None
    max_tokens: ast.Expr | None = None
    constraint: Constraint | None = None
    via: Filter | Amortized | None = None
    draft: Draft | None = None
    into: str | None = None

    def _check(self) -> None:
        filters = isinstance(self.via, Filter)
        chooses = self.constraint is not None and self.constraint.kind == "choice"
        require(not filters or not chooses, "a `generate` that filters draws tokens, it does not choose")
        drafts = self.draft is not None and self.draft.method != "none"
        require(not drafts or not (filters or chooses), "a `generate` that filters or chooses takes no drafts")


@dataclass(frozen=True, slots=True)
class Score(Operator):
    """Adds the float column `into`: the verifier's step scores of the row's text, reduced to one number.

    `kind` is what the program says the verifier is; without it the model's own files tell. `raw` scores what
    search-and-learn does, an empty last step and all. `given` is the problem that is shown with the text, over a row's
    columns and the parameters; without it that is the context's first turn (see `Context.problem`).
    """

    verifier: str
    reduce: Reduce
    into: str
    kind: str | None = None
    raw: bool = False
    given: ast.Expr | None = None

    def _check(self) -> None:
        require(self.reduce in get_args(Reduce), f"scores of steps cannot be reduced by `{self.reduce}`")


@dataclass(frozen=True, slots=True)
class Judge(Operator):
    """Adds the float column `into`: the number that `model` answers when it is shown the row's text and the rubric.

    The judge is asked greedily, in a chat of its own, and its answer is held to the whole numbers from `low` to `high`.
    `given`: see `Score`.
    """

    model: str
    rubric: ast.Template
    into: str
    low: int
    high: int
    given: ast.Expr | None = None

    def _check(self) -> None:
        require(self.low < self.high, f"there is no scale from {self.low} to {self.high}")


@dataclass(frozen=True, slots=True)
class LogProb(Operator):
    """Adds the float column `into`: the row's log-probability (its `logprob` column) under `reduce`.

    `sum` is the column itself, `mean` that over the tokens sampled; the other reductions do not apply.
    """

    reduce: LogProbReduce
    into: str

    def _check(self) -> None:
        require(self.reduce in get_args(LogProbReduce), f"a log-probability has no `{self.reduce}`")


@dataclass(frozen=True, slots=True)
class PythonScore(Operator):
    """Adds the float column `into`: what the registered Python scorer `function` gives for the row.

    `given`: see `Score`.
    """

    function: str
    into: str
    given: ast.Expr | None = None


@dataclass(frozen=True, slots=True)
class Extract(Operator):
    """Adds the column `column`: the first match in the row's text, or the value at a JSON path; else none.

    `type` is the column's: text, or what the schema says of the path where the text was held to one.
    """

    column: str
    pattern: ast.Regex | ast.JsonPath
    type: str = "text"


@dataclass(frozen=True, slots=True)
class PythonExtract(Operator):
    """Adds the column `column`: what the registered Python extractor `function` gives for the row's text."""

    column: str
    function: str


@dataclass(frozen=True, slots=True)
class Where(Operator):
    """The rows for which `condition` holds."""

    condition: ast.Expr


@dataclass(frozen=True, slots=True)
class TopK(Operator):
    """The `k` rows with the greatest `by`, greatest first; ties go to the earlier row; none sorts last.

    With `per`, the `k` rows of each value of that column, the values in the order in which they are first seen. As in
    search-and-learn (`like`), the kept rows stay in the order in which they stood, and a group whose best row is
    finished, or holds a boxed answer, is closed: all its rows stay as they are, and count as finished.
    """

    k: ast.Expr
    by: ast.Expr
    per: str | None = None
    like: str | None = None

    def _check(self) -> None:
        require(self.like in (None, "search_and_learn"), f"there are no conventions of `{self.like}`")


@dataclass(frozen=True, slots=True)
class Vote(Operator):
    """One row: the best row (greatest weight, then earliest) of the value of `column` with the most weight.

    `equal` says when two values are the same answer: as texts, as numbers, or as mathematics.
    """

    column: str
    weight: ast.Expr | None
    equal: Equality = "text"

    def _check(self) -> None:
        require(self.equal in get_args(Equality), f"answers cannot be compared as `{self.equal}`")


@dataclass(frozen=True, slots=True)
class Split(Operator):
    """Each row `count` times; a copy's index is appended to its path, and `group` numbers the copies of all rows.

    With `by`, `count` rows in all, shared out among those that are not finished by the softmax of `by` over
    `temperature` (1 where None; there is none without `by`); a finished row passes as one of them. First copies come
    first, then second ones.
    """

    count: ast.Expr
    by: ast.Expr | None = None
    temperature: ast.Expr | None = None

    def _check(self) -> None:
        require(self.by is not None or self.temperature is None, "a temperature shares rows out by a value")


@dataclass(frozen=True, slots=True)
class Branch(Operator):
    """Runs each of `arms` on the rows, the arm's index appended to their paths, and puts their rows one after another.

    A column that an arm does not make is none in its rows.
    """

    arms: tuple[LogicalPlan, ...]

    def _check(self) -> None:
        require(bool(self.arms), "a branch has arms")


@dataclass(frozen=True, slots=True)
class Repeat(Operator):
    """Runs `body` on the rows until `until` holds, or `limit` times. `until` is tested before each round."""

    limit: ast.Expr
    until: ast.Expr | None
    body: LogicalPlan


@dataclass(frozen=True, slots=True)
class Peek(Operator):
    """Runs `body`, which makes one row of each; gives the rows back as they were, with the columns that it made."""

    body: LogicalPlan


@dataclass(frozen=True, slots=True)
class Call(Operator):
    """Adds the column `into`: what the called `program` gives back. The row stays as it is in everything else.

    For each row `body` runs on one new row: no context, no columns, the path of the row it is run for. `value` is an
    expression over the rows that it makes, as that of `Return`; where it makes none the column is none.
    """

    program: str
    body: LogicalPlan
    value: ast.Expr
    into: str


@dataclass(frozen=True, slots=True)
class Return(Operator):
    """The program's value: an expression over the first row, with aggregates over all rows.

    With `parse`, that value is a JSON text held to the program's schema, and what is given back is the record in it.
    """

    value: ast.Expr
    parse: bool = False


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """Operators keyed by id in a frozen `networkx.DiGraph`; edges run from producer to consumer.

    Node data: `op` (the operator) and `columns` (name → type of the relation it makes, in order of appearance).
    Every operator but `Start` has one producer; `root` is the last operator.
    """

    graph: nx.DiGraph[str]
    root: str

    def op(self, node: str) -> Operator:
        op: Operator = self.graph.nodes[node]["op"]
        return op

    def columns(self, node: str) -> Mapping[str, str]:
        columns: Mapping[str, str] = self.graph.nodes[node]["columns"]
        return columns

    def inputs(self, node: str) -> tuple[str, ...]:
        return tuple(self.graph.predecessors(node))

    def order(self) -> Iterator[str]:
        """Node ids, producers first."""
        return iter(nx.lexicographical_topological_sort(self.graph, key=lambda node: self.op(node).stage))


def inner_plans(op: Operator) -> tuple[LogicalPlan, ...]:
    """The plans inside an operator: its body, or its arms."""
    match op:
        case Repeat(body=body) | Peek(body=body) | Call(body=body):
            return (body,)
        case Branch(arms=arms):
            return arms
    return ()
