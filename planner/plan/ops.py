"""Logical operators: what a program means, and nothing about how it runs.

Every operator is frozen and checks itself where it is built: one without a meaning raises `InvalidPlan`. Whether
the value of an expression is in its range depends on the arguments, so that is left to the checker and the runtime.
`stage` numbers the source stages of a program in reading order, from 0, and the `ordinal` of a `Generate` those stages
alone that sample; it is a part of the noise key (see `docs/architecture.md`), so a rewrite that moves an operator keeps
its numbers.
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
from qpdsl.grammar.words import (
    CONFIDENCES,
    MOST_DRAFTED,
    Confidence,
    DraftMethod,
    DrawFigure,
    Equality,
    JudgeReduce,
    Reduce,
    SearchMethod,
    Which,
)
from qpdsl.planner.budget.budget_policy import Way

LogProbReduce = OneOf["sum", "mean", "min"]
DrawReduce = OneOf["mean", "min", "last"]
ConstraintKind = OneOf["json_schema", "regex", "choice", "grammar"]
# Thresholds of a filter that are on offer, where its confidence is a probability and their losses were measured.
THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
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
class Say(Operator):
    """Adds a text to what was generated in each row, as if the model had written it; the row is not finished then.

    The expression reads a row's columns and the parameters. Of a template the parts that the program's author wrote may
    be special tokens.
    """

    text: ast.Expr


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output is held to, checked to compile.

    `source` is JSON Schema as JSON text, a regex, a JSON list of the options, or a llguidance Lark grammar, such that
    llguidance can hold to it. `name` is what the program calls it. `schema` is the JSON Schema that the program gives,
    which every output must satisfy; empty for other kinds. `type` is that of the column that `into` names. `options`
    are those of a choice that is known when it is made; then `source` is empty.
    """

    kind: ConstraintKind
    source: str
    name: str
    schema: str = ""
    type: str = "text"
    options: ast.Expr | None = None

    def __post_init__(self) -> None:
        require(self.kind in get_args(ConstraintKind), f"there is no constraint `{self.kind}`")


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter decoding: the token that `model` draws stands where its confidence is over `threshold`.

    `by` is what the confidence is: exp(−NLL) of the drawn token, the lead p1 − p2 of the likeliest one, or 1 − H/ln V
    of the distribution. `share`, in the place of a threshold, holds the threshold where the larger model draws that
    share of a sample's tokens. What the larger model has to draw waits until `rows` rows want it, `wait` seconds at
    most; what is absent is the strategy's to say.
    """

    model: str
    threshold: ast.Expr | None = None
    by: Confidence = "probability"
    share: ast.Expr | None = None
    rows: ast.Expr | None = None
    wait: ast.Expr | None = None

    def __post_init__(self) -> None:
        require(self.by in CONFIDENCES, f"there is no confidence `{self.by}`")
        require((self.threshold is None) != (self.share is None), "a filter has a threshold or a share")

    @property
    def numbers(self) -> tuple[tuple[str, ast.Expr], ...]:
        """The expressions, by the names of their ranges."""
        return present(threshold=self.threshold, share=self.share, rows=self.rows, wait=self.wait)


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

    `model` is what drafts, for "model" and "eagle": a name of the plan's, or the folder of the head. For "early_exit"
    it is the folder of an exit head, None for the model's own head after its middle layer. `texts` are what "ngram"
    looks into besides the sample and its prompt. With `branches` above 1 a token may be followed by so many. `none`
    means no drafts at all, the planner's own included.
    """

    method: DraftMethod
    model: str | None = None
    texts: str = field(default="", repr=False)
    tokens: int = DRAFTED
    branches: int = 1

    def __post_init__(self) -> None:
        require(self.method in get_args(DraftMethod), f"there is no way to draft `{self.method}`")
        named = self.method in ("model", "eagle")
        require(named == (self.model is not None) or self.method == "early_exit", "only a model or a head has a name")
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

    The options read a row's columns and the parameters, those of `via` parameters only. `stop` is a string, a regex, or
    a list of them; `max_tokens` None means up to the context's end. Beside a filter there is no `choice`. `draft` is
    what the program wishes, None where it says nothing. `ordinal` numbers the `generate`s of the program, those of
    inlined calls among them, in reading order from 0.

    A row is finished where the model ends its turn or has no room; as in search-and-learn (`like`), `max_tokens`
    finishes it too.
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
    ordinal: int = 0
    like: str | None = None

    def _check(self) -> None:
        require(self.like in (None, "search_and_learn"), f"there are no conventions of `{self.like}`")
        filters = isinstance(self.via, Filter)
        chooses = self.constraint is not None and self.constraint.kind == "choice"
        require(not filters or not chooses, "a `generate` that filters draws tokens, it does not choose")
        drafts = self.draft is not None and self.draft.method != "none"
        require(not drafts or not (filters or chooses), "a `generate` that filters or chooses takes no drafts")

    @property
    def options(self) -> tuple[tuple[str, ast.Expr], ...]:
        """The options that are given, by the names of their ranges, in the order of the form."""
        return present(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self._stop_texts,
            max_tokens=self.max_tokens,
        )

    @property
    def stop_patterns(self) -> tuple[str, ...]:
        """The regexes among what ends a sample."""
        items = self.stop.items if isinstance(self.stop, ast.ListLiteral) else (self.stop,)
        return tuple(item.pattern for item in items if isinstance(item, ast.Regex))

    @property
    def _stop_texts(self) -> ast.Expr | None:
        """What gives the texts among what ends a sample: one, or a list."""
        stop = self.stop
        if isinstance(stop, ast.ListLiteral) and self.stop_patterns:
            items = tuple(item for item in stop.items if not isinstance(item, ast.Regex))
            return ast.ListLiteral(items, span=stop.span) if items else None
        return None if isinstance(stop, ast.Regex) else stop


@dataclass(frozen=True, slots=True)
class Score(Operator):
    """Adds the float column `into`: the verifier's step scores of the row's text, reduced to one number.

    `kind` is what the program says the verifier is; without it the model's own files tell. `raw` scores what
    search-and-learn does, an empty last step and all. `given` is the problem that is shown with the text, over a row's
    columns and the parameters; without it that is the context's first turn (see `Context.problem`). `of` is a text that
    is scored in the place of the row's, over the same.
    """

    verifier: str
    reduce: Reduce
    into: str
    kind: str | None = None
    raw: bool = False
    given: ast.Expr | None = None
    of: ast.Expr | None = None

    def _check(self) -> None:
        require(self.reduce in get_args(Reduce), f"scores of steps cannot be reduced by `{self.reduce}`")


@dataclass(frozen=True, slots=True)
class Judge(Operator):
    """Adds the float column `into`: the number that `model` answers when it is asked about the row.

    The judge is asked in a chat of its own, and its answer is held to the whole numbers from `low` to `high`. With
    `whole` the rubric is the question, over a row's columns and the parameters; without it the rubric, which reads
    parameters only, follows the problem and the text (`given`, `of`: see `Score`). The number is that of the greedy
    answer; `expected` makes it the mean of the scale's numbers by the probabilities that the model gives them.
    """

    model: str
    rubric: ast.Template
    into: str
    low: int
    high: int
    given: ast.Expr | None = None
    of: ast.Expr | None = None
    whole: bool = False
    reduce: JudgeReduce = "answer"

    def _check(self) -> None:
        require(self.low < self.high, f"there is no scale from {self.low} to {self.high}")
        require(self.reduce in get_args(JudgeReduce), f"a judge's answer cannot be reduced by `{self.reduce}`")
        require(not self.whole or self.given is None is self.of, "a question that is whole shows what it names alone")


@dataclass(frozen=True, slots=True)
class Prob(Operator):
    """Adds the float column `into`: the probability that `model` answers `question` with the first of `answers`.

    It is asked in a chat of its own, and an answer is all that it says there. Where there are other answers the
    probability is that among them. Question and answers are over a row's columns and the parameters.
    """

    model: str
    question: ast.Template
    answers: tuple[ast.Template, ...]
    into: str

    def _check(self) -> None:
        require(bool(self.answers), "a probability is that of an answer")


@dataclass(frozen=True, slots=True)
class Tournament(Operator):
    """The row that wins a knockout tournament of the rows in their order; with `per` one for each value of the column.

    In a match `model` is asked, in a chat of its own, which of two rows is better: `question` reads their columns as
    fields of `a` and `b`, and the parameters. The answer is held to "A" and "B". With `both` it is asked again with the
    rows the other way round, and the probabilities are averaged. A tie goes to the earlier row, and in a round of an
    odd number of rows the first goes on without a match.
    """

    model: str
    question: ast.Template
    both: bool = True
    per: str | None = None


@dataclass(frozen=True, slots=True)
class Equal(Operator):
    """Adds the float column `into`: 1.0 where `answer` and `reference` are the same by `by`, else 0.0.

    None where one of them is none. Both are over a row's columns and the parameters.
    """

    answer: ast.Expr
    reference: ast.Expr
    into: str
    by: Equality = "text"

    def _check(self) -> None:
        require(self.by in get_args(Equality), f"answers cannot be compared as `{self.by}`")


@dataclass(frozen=True, slots=True)
class ValidJson(Operator):
    """Adds the float column `into`: 1.0 where the row's text is a JSON document, else 0.0.

    It has to satisfy `schema`, a JSON Schema as text that the program calls `name`, where there is one. `of`: see
    `Score`.
    """

    into: str
    schema: str | None = None
    name: str | None = None
    of: ast.Expr | None = None


@dataclass(frozen=True, slots=True)
class Passes(Operator):
    """Adds the float column `into`: 1.0 where the Python code in the row's text passes `tests`, else 0.0.

    The code runs with the tests after it in a process of its own, for `timeout` seconds at most (see
    `executor/runtime/scoring/sandbox.py`). Tests and `of` (see `Score`) are over a row's columns and the parameters.
    """

    tests: ast.Expr
    into: str
    timeout: ast.Expr | None = None
    of: ast.Expr | None = None


@dataclass(frozen=True, slots=True)
class LogProb(Operator):
    """Adds the float column `into`: the row's log-probability (its `logprob` column) under `reduce`.

    `sum` is the column itself, `mean` that over the tokens sampled, `min` that of the least probable one; the other
    reductions do not apply.
    """

    reduce: LogProbReduce
    into: str

    def _check(self) -> None:
        require(self.reduce in get_args(LogProbReduce), f"a log-probability has no `{self.reduce}`")


def usual_reduce(kind: DrawFigure) -> DrawReduce:
    """What is made of the figures of all tokens where the program does not say."""
    return "min" if kind == "confidence" else "mean"


@dataclass(frozen=True, slots=True)
class DrawScore(Operator):
    """Adds the float column `into`: how sure the model was of the tokens sampled, or how unsure (`DrawFigures`).

    `kind` is the figure, `reduce` what is made of those of all tokens: their mean, the least, or the last. A confidence
    is that of `window` tokens one after another (256 where None), of all where there are fewer, and these are reduced:
    the lowest group is what DeepConf goes by (Fu et al., 2025, section 3).
    """

    kind: DrawFigure
    reduce: DrawReduce
    into: str
    window: ast.Expr | None = None

    def _check(self) -> None:
        require(self.kind in get_args(DrawFigure), f"nothing is told of draws that is called `{self.kind}`")
        require(self.reduce in get_args(DrawReduce), f"figures of draws have no `{self.reduce}`")
        require(self.window is None or self.kind == "confidence", "a confidence alone is that of a window")


@dataclass(frozen=True, slots=True)
class PythonScore(Operator):
    """Adds the float column `into`: what the registered Python scorer `function` gives for the row.

    `asks` are the columns that the function asks for by name, and `arguments` the parameters of the program, with their
    values, over the parameters; `row`: it is shown all columns. `given`, `of`: see `Score`.
    """

    function: str
    into: str
    given: ast.Expr | None = None
    of: ast.Expr | None = None
    asks: tuple[str, ...] = ()
    arguments: tuple[tuple[str, ast.Expr], ...] = ()
    row: bool = True


@dataclass(frozen=True, slots=True)
class Extract(Operator):
    """Adds the column `column`: a match in the row's text, or the value at a JSON path; else none.

    The match is the first one or, by `which`, the last, or the list of all: matches that do not overlap, from the left.
    "boxed" matches what stands in the braces of a `\\boxed{…}`, of LaTeX, inner braces and all. `type` is the
    column's: text, a list of texts, or what the schema says of the path where the text was held to one.
    """

    column: str
    pattern: ast.Regex | ast.JsonPath | OneOf["boxed"]
    type: str = "text"
    which: Which = "first"

    def _check(self) -> None:
        require(self.which in get_args(Which), f"no `{self.which}` is taken of matches")
        require(not isinstance(self.pattern, ast.JsonPath) or self.which == "first", "a path leads to one value")


@dataclass(frozen=True, slots=True)
class PythonExtract(Operator):
    """Adds the column `column`: what the registered Python extractor `function` gives for the row's text.

    `asks`, `arguments`, `row`: see `PythonScore`.
    """

    column: str
    function: str
    asks: tuple[str, ...] = ()
    arguments: tuple[tuple[str, ast.Expr], ...] = ()
    row: bool = True


@dataclass(frozen=True, slots=True)
class Let(Operator):
    """Adds the column `column`: the value of an expression, which may look at all rows of the stage."""

    column: str
    value: ast.Expr


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

    `equal` says when two values are the same answer: as texts, as numbers, or as mathematics. With `decided` the rows
    count in their order, and those behind the first ones at which the winner is that sure do not count: adaptive
    consistency, by the Beta posterior (Aggarwal et al., "Let's Sample Step by Step", 2023, section 3). With `per`, one
    row of each value of that column, the values in the order in which they are first seen.
    """

    column: str
    weight: ast.Expr | None
    equal: Equality = "text"
    decided: ast.Expr | None = None
    per: str | None = None

    def _check(self) -> None:
        require(self.equal in get_args(Equality), f"answers cannot be compared as `{self.equal}`")
        require(self.weight is None or self.decided is None, "weights say nothing of how sure a vote is")


@dataclass(frozen=True, slots=True)
class Split(Operator):
    """Each row `count` times; a copy's index is appended to its path, and `group` numbers the copies of all rows.

    With `by`, `count` rows in all, shared out among those that are not finished by the softmax of `by` over
    `temperature` (1 where None; there is none without `by`); a finished row passes as one of them. First copies come
    first, then second ones. With `per`, which there is beside `by` only, `count` rows of each value of that column, the
    values in the order in which they are first seen; `group` stays as it is.
    """

    count: ast.Expr
    by: ast.Expr | None = None
    temperature: ast.Expr | None = None
    per: str | None = None

    def _check(self) -> None:
        shares = self.temperature is not None or self.per is not None
        require(self.by is not None or not shares, "rows are shared out by a value")


@dataclass(frozen=True, slots=True)
class Distinct(Operator):
    """The first row of each value of `by`; with `per`, of each value within each value of that column."""

    by: ast.Expr
    per: str | None = None


@dataclass(frozen=True, slots=True)
class Order(Operator):
    """The rows, greatest `by` first, texts in the order of the alphabet; ties stay in their order, none comes last."""

    by: ast.Expr


@dataclass(frozen=True, slots=True)
class Join(Operator):
    """One row of all, the first, with the column `column`: the texts of `value` over the rows, with `sep` between them.

    A value that is none is left out. In `value` the name `i` is the row's number, from 1; the separator reads
    parameters. With `per`, one row of each value of that column, in the order in which they are first seen.
    """

    column: str
    value: ast.Expr
    sep: ast.Expr
    per: str | None = None


@dataclass(frozen=True, slots=True)
class If(Operator):
    """The rows for which `condition` holds through the first of `arms`, the others through the second, if there is one.

    No index is appended to paths. The rows come out in the order of those that they were made of. A column that an arm
    does not make is none in its rows.
    """

    condition: ast.Expr
    arms: tuple[LogicalPlan, ...]

    def _check(self) -> None:
        require(len(self.arms) in (1, 2), "an `if` has an arm, and perhaps one for the other rows")


@dataclass(frozen=True, slots=True)
class Each(Operator):
    """Runs `body` on copies of each row, one for every element of a list, which stands in the column `column`.

    The list is the value of an expression, or stands at a JSON path in the row's text. The element's index is appended
    to the path. A row without elements makes no row. `type` is the elements'.
    """

    column: str
    source: ast.Expr | ast.JsonPath
    body: LogicalPlan
    type: str = "unknown"


@dataclass(frozen=True, slots=True)
class Branch(Operator):
    """Runs each of `arms` on the rows, the arm's index appended to their paths, and puts their rows one after another.

    A column that an arm does not make is none in its rows.
    """

    arms: tuple[LogicalPlan, ...]

    def _check(self) -> None:
        require(bool(self.arms), "a branch has arms")


@dataclass(frozen=True, slots=True)
class Strategy(Operator):
    """The whole of a program that leaves its ways to a budget: one of `ways`, or several one after another.

    Each way is a chain of operators with a return of its own, as if the program had been written so. The last one that
    is tried gives the program's rows and its value, and the column of `scores` that its score is reported from. Only a
    physical plan has this operator (`planner/ways/strategy_plan.py`).
    """

    ways: tuple[Way, ...]
    scores: tuple[str | None, ...]

    def _check(self) -> None:
        require(bool(self.ways) and len(self.ways) == len(self.scores), "a strategy has ways, each with its score")


@dataclass(frozen=True, slots=True)
class Repeat(Operator):
    """Runs `body` on the rows until `until` holds, or `limit` times. `until` is tested before each round."""

    limit: ast.Expr
    until: ast.Expr | None
    body: LogicalPlan


@dataclass(frozen=True, slots=True)
class Search(Operator):
    """Grows a tree below each row: `body` makes the children of a row, `by` is the value of each, `simulations` times.

    "puct" expands the leaf that a descent by PUCT leads to, with all its siblings as likely and weight `c` (Silver et
    al., "Mastering the game of Go without human knowledge", 2017). "ab_mcts" goes down by Thompson sampling and makes a
    new child anywhere, wider or deeper: AB-MCTS-A with Gaussian posteriors (Inoue et al., "Wider or Deeper?", 2025).
    `per_round` rows are expanded side by side (1 where None). A row with no value is not expanded, nor, unless the body
    begins `turns` anew, one that is finished.

    What comes out are the leaves, or all rows that were made where each begins a turn; finished ones first. `visits`
    and `value` are how many values of a row and those below it there are, and their mean.
    """

    method: SearchMethod
    by: ast.Expr
    simulations: ast.Expr
    c: ast.Expr | None
    per_round: ast.Expr | None
    turns: bool
    body: LogicalPlan

    @property
    def options(self) -> tuple[tuple[str, ast.Expr], ...]:
        """The options that are there, by the names of their ranges."""
        return present(simulations=self.simulations, c=self.c, per_round=self.per_round)

    def _check(self) -> None:
        require(self.method in get_args(SearchMethod), f"there is no search `{self.method}`")


@dataclass(frozen=True, slots=True)
class Peek(Operator):
    """Runs `body`, which makes one row of each; gives the rows back as they were, with the columns that it made."""

    body: LogicalPlan


@dataclass(frozen=True, slots=True)
class Ask(Operator):
    """Runs `body` for each row on a row of its own: no context, but the columns and the path of the row.

    Gives the rows back as they were, with the columns that the body made of its first row; none where it left no row.
    """

    body: LogicalPlan


@dataclass(frozen=True, slots=True)
class GivenColumn:
    """A parameter of a called program whose argument differs from row to row: a column of its rows, and its value."""

    name: str
    type: str
    value: ast.Expr


@dataclass(frozen=True, slots=True)
class Call(Operator):
    """Adds the column `into`: what the called `program` gives back. The row stays as it is in everything else.

    For each row `body` runs on one new row: no context, the path of the row it is run for, and no columns but those of
    `given`. `value` is an expression over the rows that it makes, as that of `Return`; where it makes none the column
    is none. `type` is that of the column where a JSON text spells the value; None where it stands as it is.
    """

    program: str
    body: LogicalPlan
    value: ast.Expr
    into: str
    given: tuple[GivenColumn, ...] = ()
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Return(Operator):
    """The program's value: an expression over the first row, with aggregates over all rows.

    With `parse`, that value is a JSON text held to a schema, and what is given back is what the JSON spells. `schema`
    is the JSON Schema of the declared result, as text, where it is for the run to see that the value satisfies it.
    """

    value: ast.Expr
    parse: bool = False
    schema: str | None = None


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
        case (
            Repeat(body=body) | Search(body=body) | Each(body=body) | Peek(body=body) | Ask(body=body) | Call(body=body)
        ):
            return (body,)
        case Branch(arms=arms) | If(arms=arms):
            return arms
    return ()
