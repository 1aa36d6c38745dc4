"""The stages that start contexts, ask models and score what they wrote, each declared once: see `stages.py`."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, get_args

from qpdsl.grammar.ast.clauses import Constraint, Contrast, Draft, DraftClause, ModelRef, Paired, Target, Until, Via
from qpdsl.grammar.ast.expressions import Expr, ListLiteral, Name, Regex, Template, present
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.ast.stage import (
    INTO,
    Range,
    Reads,
    Role,
    Stage,
    is_a,
    is_equality,
    is_number,
    is_text,
    parts,
    require,
)
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import (
    DRAW_FIGURES,
    DRAW_REDUCES,
    FIRST_TOKENS,
    HISTORIES,
    JUDGE_REDUCES,
    MAX_AHEAD,
    PARTS,
    REDUCES,
    ROLES,
    STOP_TEXTS,
    DrawFigure,
    DrawReduce,
    Equality,
    FirstTokens,
    History,
    JudgeReduce,
    LogProbReduce,
    Part,
    Reduce,
    StopText,
)

# The most rows that one stage may make of a row.
MAX_ROWS = 65536
_REDUCE = is_a("word", "reduce=", words=(*REDUCES, *JUDGE_REDUCES), code="QP207", what="not a way to reduce")

_THINK = is_a(
    "value",
    "think=",
    reads="option",
    accepts=frozenset({"int", "bool", "text", "none"}),
    what="a number of tokens, `on`, `off` or an effort",
    switch=True,
)


def _penalty(name: str, low: float, high: float, **open: bool) -> Mapping[str, Role]:
    return is_number(f"{name}=", Range("float", low, high, **open), name, reads="option")


# Contexts


@dataclass(frozen=True, slots=True)
class SetContext(Stage):
    """Starts each row's context with chat turns or one plain prompt; appends to a context that has been started.

    What was generated since then stands in the longer context as the assistant's turn, or as more of the prompt. The
    expressions read a row's columns and the parameters.
    """

    rows = "same"


@dataclass(frozen=True, slots=True)
class Prompt(SetContext):
    """`prompt "…"`: starts the context with plain text."""

    word, usage, first = "prompt", 'prompt "…"', "a string"
    operator = "SetContext"

    text: Template = field(metadata=is_a("value", reads="row", template=True))


@dataclass(frozen=True, slots=True)
class Turn(Node):
    """One `role=expr` of a `chat` stage; `messages=` stands for the turns of a conversation."""

    role: typing.Literal["system", "user", "assistant", "tool", "messages"]
    content: Expr = field(
        metadata=is_a("value", reads="row", type=lambda turn: "messages" if turn.role == "messages" else "text")
    )


@dataclass(frozen=True, slots=True)
class Chat(SetContext):
    """`chat system=… user=… assistant=… tool=… history=…`: starts the context with turns, in the order written.

    A turn of a `tool` says what came of the call that ends the model's own turn, whose tokens stay as they are.

    `history` says how the model's own turn before them is shown to it: as its template has it, which may leave its
    thoughts out, or in the very tokens that were drawn, so that no prefix is lost.
    """

    word, usage = "chat", "chat system= user= assistant= tool= messages= history=template|tokens"
    first, also = "`system=`, `user=` or `assistant=`", ("system", "user")
    operator = "SetContext"

    turns: tuple[Turn, ...] = field(metadata=is_a("part", words=(*ROLES, "tool", "messages")))
    history: History = field(
        default="template", metadata=is_a("word", "history=", words=HISTORIES, code="QP129", what="no such history")
    )

    def _check(self) -> None:
        require(bool(self.turns), "a context is either chat turns or a prompt")


@dataclass(frozen=True, slots=True)
class Say(Stage):
    """`say "Wait, "`: adds a text to what was generated in each row, as if the model had written it.

    The row is not finished then. Of a template the parts that the program's author wrote may be special tokens.
    """

    word, usage, first = "say", 'say "…"', "a string"
    also = ("append", "prefill", "write")
    rows = "same"
    needs = "context"

    text: Expr = field(metadata=is_text())


# Calls of models


@dataclass(frozen=True, slots=True)
class Generate(Stage):
    """`generate MODEL n= … as … via … draft … until … into …`: each unfinished row becomes `n` rows that the model goes
    on with.

    Finished rows pass as one row. `stop` is a string, a regex, or a list of them; without `max_tokens` a sample may go
    on to the context's end. `into` names a column for this call's text. What is left out is None; of an operator `n`
    and `temperature` are there.

    With `first_tokens` "likeliest" sample i begins with the token of rank i, and goes on by itself (CoT-decoding: Wang
    and Zhou, 2024). `stop_text` says whether what stopped stays in the text. `without` are texts that never appear, and
    before `min_tokens` nothing ends the sample. `logit_bias` is a list of records of a `token` and its `bias`.

    `think` is for a model that thinks before it answers: whether it does, how hard, or for how many tokens at most,
    after which the answer is made to follow. `max_tokens` and `stop` are the answer's. `only` is "thought" where the
    call goes on with the thought alone, which stays open, and "answer" where the thought ends here.

    `ahead` is how many rounds of the loop around it a sample may run ahead (`n_stop_occurrences` of the thesis, section
    7.1); no token depends on it.

    Of an operator: `constraint` is what the target was compiled to. Beside a filter there is no `choice`. `draft` is
    what the program wishes, None where it says nothing. `ordinal` numbers the `generate`s of the program, those of
    inlined calls among them, in reading order from 0; it is a part of the noise key, so a rewrite that moves an
    operator keeps it. A row is finished where the model ends its turn, has no room or is not sure enough (`until`); as
    in search-and-learn (`like`), `max_tokens` finishes it too.
    """

    word = "generate"
    usage = (
        "generate MODEL n= temperature= top_p= top_k= min_p= first_tokens=drawn|likeliest repetition_penalty= "
        "presence_penalty= frequency_penalty= logit_bias= stop= stop_text=keep|drop without= min_tokens= max_tokens= "
        "think= only= ahead= as … via … draft … until … into …"
    )
    first = "a model"
    also = ("sample", "complete")
    needs = "context"

    model: ModelRef = field(metadata=is_a("model"))
    n: Expr | None = field(
        default=None, metadata=is_number("n=", Range("int", 1, MAX_ROWS), "n", reads="option", auto=True)
    )
    temperature: Expr | None = field(
        default=None, metadata=is_number("temperature=", Range("float", 0), "temperature", reads="option")
    )
    top_p: Expr | None = field(
        default=None, metadata=is_number("top_p=", Range("float", 0, 1, open_low=True), "top_p", reads="option")
    )
    top_k: Expr | None = field(default=None, metadata=is_number("top_k=", Range("int", 1), "top_k", reads="option"))
    min_p: Expr | None = field(
        default=None, metadata=is_number("min_p=", Range("float", 0, 1, open_high=True), "min_p", reads="option")
    )
    first_tokens: FirstTokens = field(
        default="drawn",
        metadata=is_a("word", "first_tokens=", words=FIRST_TOKENS, code="QP129", what="`drawn` or `likeliest`"),
    )
    repetition_penalty: Expr | None = field(default=None, metadata=_penalty("repetition_penalty", 0, 10, open_low=True))
    presence_penalty: Expr | None = field(default=None, metadata=_penalty("presence_penalty", -2, 2))
    frequency_penalty: Expr | None = field(default=None, metadata=_penalty("frequency_penalty", -2, 2))
    logit_bias: Expr | None = field(default=None, metadata=is_a("value", "logit_bias=", reads="option"))
    stop: Expr | None = field(default=None, metadata=is_a("value", "stop=", reads="option", type="text"))
    stop_text: StopText = field(
        default="keep", metadata=is_a("word", "stop_text=", words=STOP_TEXTS, code="QP129", what="`keep` or `drop`")
    )
    without: Expr | None = field(default=None, metadata=is_a("value", "without=", reads="option", type="text"))
    min_tokens: Expr | None = field(
        default=None, metadata=is_number("min_tokens=", Range("int", 0), "min_tokens", reads="option")
    )
    max_tokens: Expr | None = field(
        default=None, metadata=is_number("max_tokens=", Range("int", 1), "max_tokens", reads="option")
    )
    think: Expr | None = field(default=None, metadata=_THINK)
    only: Part | None = field(
        default=None, metadata=is_a("word", "only=", words=PARTS, code="QP129", what="no part of a turn")
    )
    ahead: Expr | None = field(
        default=None, metadata=is_number("ahead=", Range("int", 0, MAX_AHEAD), "ahead", reads="option")
    )
    target: Target | None = field(default=None, metadata=is_a("part", "as"))
    via: Via | None = field(default=None, metadata=is_a("part", "via"))
    drafts: DraftClause | None = field(default=None, metadata=is_a("part", "draft"))
    until: Until | None = field(default=None, metadata=is_a("part", "until"))
    into: Name | None = field(default=None, metadata=INTO)
    constraint: Constraint | None = None
    draft: Draft | None = None
    ordinal: int = 0
    like: str | None = None

    def _check(self) -> None:
        require(self.like in (None, "search_and_learn"), f"there are no conventions of `{self.like}`")
        paired = isinstance(self.via, Paired)
        require(self.first_tokens == "drawn" or not (self.constraint or self.via), "likeliest tokens are the model's")
        require(not (self.holds_text and self.constraint), "a text is held to a form, or free but for some texts")
        chooses = self.constraint is not None and self.constraint.kind == "choice"
        require(not paired or not chooses, "a `generate` of two models draws tokens, it does not choose")
        drafts = self.draft is not None and self.draft.method != "none"
        require(not drafts or not (paired or chooses), "a `generate` of two models, or that chooses, takes no drafts")
        told = (self.via is None or isinstance(self.via, Contrast)) and not chooses
        require(self.until is None or told, "a confidence is that of tokens which come from one distribution")

    @property
    def options(self) -> tuple[tuple[str, Expr], ...]:
        """The options that are given, by the names of their ranges, in the order of the form."""
        given = (
            (name, getattr(self, name)) for name, part in parts(type(self)) if part.is_option and part.kind == "value"
        )
        own = present(**{name: self._stop_texts if name == "stop" else value for name, value in given})
        clauses = [clause for clause in (self.via, self.until) if isinstance(clause, Paired | Until)]
        return (*own, *(option for clause in clauses for option in clause.options))

    @property
    def penalties(self) -> tuple[tuple[str, Expr], ...]:
        """The options that change the logits of ids, as far as they are given."""
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
        return present(**{name: getattr(self, name) for name in names})

    @property
    def holds_text(self) -> bool:
        """Whether a mask keeps texts, or an early end, out of what is else free."""
        return self.without is not None or self.min_tokens is not None

    @property
    def stop_patterns(self) -> tuple[str, ...]:
        """The regexes among what ends a sample."""
        items = self.stop.items if isinstance(self.stop, ListLiteral) else (self.stop,)
        return tuple(item.pattern for item in items if isinstance(item, Regex))

    @property
    def _stop_texts(self) -> Expr | None:
        """What gives the texts among what ends a sample: one, or a list."""
        stop = self.stop
        if isinstance(stop, ListLiteral) and self.stop_patterns:
            items = tuple(item for item in stop.items if not isinstance(item, Regex))
            return ListLiteral(items, span=stop.span) if items else None
        return None if isinstance(stop, Regex) else stop


@dataclass(frozen=True, slots=True)
class Score(Stage):
    """`score VERIFIER reduce=… of TEXT given PROBLEM into NAME`: adds a float column with what the verifier says.

    Each verifier is a class of its own, which has the fields of its form besides these. `of` is the text that is
    scored, None for that of the row. `given` is the problem that the verifier is shown with the text; None for the
    first turn of the conversation (see `Context.problem`). `reduce` is None where it is left out, but for an operator.
    `at` is where the verifier is written.
    """

    word, first = "score", "a verifier"
    usage = 'score VERIFIER or judge(MODEL, "rubric", 1..5) reduce= of TEXT given PROBLEM into NAME'
    also = ("judge",)
    rows = "same"
    usual: ClassVar[Reduce | JudgeReduce | LogProbReduce | None] = None

    reduce: Reduce | JudgeReduce | LogProbReduce | None = field(
        default=None,
        kw_only=True,
        metadata=_REDUCE,
    )
    of: Expr | None = field(default=None, kw_only=True, metadata=is_text("of", place="`of`"))
    given: Expr | None = field(default=None, kw_only=True, metadata=is_text("given", place="`given`"))
    into: Name | None = field(default=None, kw_only=True, metadata=INTO)
    at: Span | None = field(default=None, kw_only=True, compare=False, repr=False)

    @property
    def usual_reduce(self) -> Reduce | JudgeReduce | LogProbReduce | None:
        """What `reduce` is where the program does not say."""
        return self.usual

    @property
    def made(self) -> str:
        """The column that it makes."""
        return "score" if self.into is None else self.into.id


@dataclass(frozen=True, slots=True)
class StepScore(Score):
    """`score MODEL`: a verifier's step scores of the row's text, reduced to one number.

    As it is written it is any verifier that is a bare name: a model, `logprob`, `json`, or a scorer that the caller
    registered; checking finds out which. `kind` is what the program says the verifier is; without it the model's own
    files tell. `raw` scores what search-and-learn does, an empty last step and all.
    """

    operator = "Score"
    usual = "last"

    verifier: ModelRef = field(metadata=is_a("model"))
    kind: str | None = None
    raw: bool = False

    def _check(self) -> None:
        require(self.reduce in REDUCES, f"scores of steps cannot be reduced by `{self.reduce}`")


def _rubric_reads(judge: Judge) -> Reads:
    return "row" if judge.whole else "parameters"


@dataclass(frozen=True, slots=True)
class Judge(Score):
    """`judge(MODEL, "rubric", LOW..HIGH)`: the number that a model answers when it is asked about the row.

    The judge is asked in a chat of its own, and its answer is held to the whole numbers from `low` to `high`. With
    `whole`, written `judge(MODEL, "question") as int(LOW..HIGH)`, the rubric is the question, over a row's columns and
    the parameters; without it the rubric, which reads parameters only, follows the problem and the text. The number is
    that of the greedy answer; `expected` makes it the mean of the scale's numbers by the probabilities that the model
    gives them.
    """

    form = "judge"
    usual = "answer"

    model: ModelRef = field(metadata=is_a("model"))
    rubric: Template = field(metadata=is_a("value", reads=_rubric_reads, template=True))
    low: int
    high: int
    whole: bool = False

    def _check(self) -> None:
        require(self.low < self.high, f"there is no scale from {self.low} to {self.high}")
        require(self.reduce in JUDGE_REDUCES, f"a judge's answer cannot be reduced by `{self.reduce}`")
        require(not self.whole or self.given is None is self.of, "a question that is whole shows what it names alone")


@dataclass(frozen=True, slots=True)
class Prob(Score):
    """`prob(MODEL, "question", "Yes", "No")`: the probability that a model answers the question with the first answer.

    It is asked in a chat of its own, and an answer is all that it says there. Where there are other answers the
    probability is that among them. Question and answers are over a row's columns and the parameters.
    """

    form = "prob"

    model: ModelRef = field(metadata=is_a("model"))
    question: Template = field(metadata=is_a("value", reads="row", template=True))
    answers: tuple[Expr, ...] = field(metadata=is_a("value", reads="row", template=True))

    def _check(self) -> None:
        require(bool(self.answers), "a probability is that of an answer")


@dataclass(frozen=True, slots=True)
class Likelihood(Prob):
    """`likelihood(MODEL, "question", TEXT)`: the log-probability that a model answers the question with a text.

    That of its tokens, without the end after them: their sum, mean or least. Nothing is drawn.
    """

    form = "likelihood"
    usual = "sum"

    def _check(self) -> None:
        require(len(self.answers) == 1, "a likelihood is that of one text")
        require(self.reduce in get_args(LogProbReduce), f"a likelihood has no `{self.reduce}`")


@dataclass(frozen=True, slots=True)
class Equal(Score):
    """`equal(ANSWER, REFERENCE, by=text|number|math)`: 1 where two values are the same answer, else 0.

    None where one of them is none. Both are over a row's columns and the parameters.
    """

    form = "equal"

    answer: Expr = field(metadata=is_a("value", reads="row"))
    reference: Expr = field(metadata=is_a("value", reads="row", type="text"))
    by: Equality = field(default="text", metadata=is_equality("by="))


@dataclass(frozen=True, slots=True)
class ValidJson(Score):
    """`json(SCHEMA)`: 1 where a text is a JSON document of the schema, else 0. `json` alone is written as a bare name.

    Of an operator: `source` is the schema as JSON Schema in a text; None where any JSON will do.
    """

    form = "json"

    schema: Name | None = field(default=None, metadata=is_a("plain"))
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Passes(Score):
    """`passes(TESTS, timeout=SECONDS)`: 1 where the Python code in a text passes unit tests, else 0.

    The code runs with the tests after it in a process of its own, for `timeout` seconds at most (see
    `executor/runtime/sandbox/`). Tests are over a row's columns and the parameters. Of an operator: `why` makes it
    `extract NAME = failure(TESTS, timeout=SECONDS)`, which is why the code fails, as text, and none where it passes.
    """

    form = "passes"

    tests: Expr = field(metadata=is_text(place="`passes`"))
    timeout: Expr | None = field(
        default=None, metadata=is_number("timeout=", Range("float", 0, 600, open_low=True), "timeout")
    )
    why: bool = False

    @property
    def named(self) -> str:
        """The stage in a message."""
        return "extract … = failure(…)" if self.why else "score passes(…)"


@dataclass(frozen=True, slots=True)
class LogProb(Score):
    """`score logprob`: the row's log-probability, or under `reduce` that of the tokens sampled.

    `sum` is the column `logprob` itself, `mean` that over the tokens, `min` that of the least probable one.
    """

    form = "logprob"
    usual = "sum"

    def _check(self) -> None:
        require(self.reduce in get_args(LogProbReduce), f"a log-probability has no `{self.reduce}`")


@dataclass(frozen=True, slots=True)
class DrawScore(Score):
    """`score confidence(window=TOKENS)`: how sure the model was of the tokens sampled, or how unsure (`DrawFigures`).

    `kind` is the figure, `reduce` what is made of those of all tokens: their mean, the least, or the last. A confidence
    is that of `window` tokens one after another (256 where None), of all where there are fewer, and these are reduced:
    the lowest group is what DeepConf goes by (Fu et al., 2025, section 3). Tokens that alone could come are in no
    group. One without a window is written as a bare name. `of` is the column `thought` or `text`, for the tokens of the
    thought or of the answer alone.
    """

    form = "confidence"

    kind: DrawFigure = "confidence"
    window: Expr | None = field(default=None, metadata=is_number("window=", Range("int", 1), "window"))

    @property
    def usual_reduce(self) -> DrawReduce:
        """What is made of the figures of all tokens where the program does not say."""
        return "min" if self.kind == "confidence" else "mean"

    def _check(self) -> None:
        require(self.kind in DRAW_FIGURES, f"nothing is told of draws that is called `{self.kind}`")
        require(self.reduce in DRAW_REDUCES, f"figures of draws have no `{self.reduce}`")
        require(self.window is None or self.kind == "confidence", "a confidence alone is that of a window")


# The names of parameters of a program that a Python function asks for, with their values.
Arguments = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class PythonScore(Score):
    """`score NAME`: what the registered Python scorer `function` gives for the row.

    `asks` are the columns that the function asks for by name, and `arguments` the parameters of the program, with their
    values, over the parameters; `row`: it is shown all columns.
    """

    function: str = field(metadata=is_a("plain"))
    asks: tuple[str, ...] = ()
    arguments: Arguments = ()
    row: bool = True
