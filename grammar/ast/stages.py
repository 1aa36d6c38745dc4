"""Stages, with their clauses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

from qpdsl.grammar.ast.expressions import Expr, JsonPath, Name, Regex, Template, present
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import Confidence, DraftMethod


@dataclass(frozen=True, slots=True)
class Prompt(Node):
    """`prompt "…"`: starts the context with plain text."""

    text: Template


@dataclass(frozen=True, slots=True)
class Turn(Node):
    """One `role=expr` of a `chat` stage."""

    role: OneOf["system", "user", "assistant"]
    content: Expr


@dataclass(frozen=True, slots=True)
class Chat(Node):
    """`chat system=… user=… assistant=…`: starts the context with turns, in the order written."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class ModelRef(Node):
    """The name of a declared model, or a quoted model id."""

    name: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class SchemaTarget(Node):
    """`as NAME`: output held to a declared schema."""

    name: str


@dataclass(frozen=True, slots=True)
class ChoiceTarget(Node):
    """`as choice("yes", "no")`: output is one of the options, which are plain strings."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrammarTarget(Node):
    """`as grammar("file.lark")`: output held to a llguidance Lark grammar beside the program."""

    path: str


Target = SchemaTarget | ChoiceTarget | GrammarTarget | Regex


@dataclass(frozen=True, slots=True)
class Filter(Node):
    """`via filter(MODEL, THRESHOLD, by= share=)`: the small model's token stands where its confidence is over it.

    With `share` the threshold is none that is written: it is held so that the large model draws that share of tokens.
    """

    model: ModelRef
    threshold: Expr | None
    by: Confidence = "probability"
    share: Expr | None = None

    @property
    def numbers(self) -> tuple[tuple[str, Expr], ...]:
        """The arguments that are numbers and given, by name, in the order of the form."""
        return present(threshold=self.threshold, share=self.share)


@dataclass(frozen=True, slots=True)
class Amortized(Node):
    """`via amortized(MARGIN, layer= rerank= head="folder" certify=)`: leave early where the margin is at or over it.

    `margin` may be absent where `certify` is given. `head` is the folder of an exit head.
    """

    margin: Expr | None
    layer: Expr | None = None
    rerank: Expr | None = None
    head: str | None = None
    certify: Expr | None = None

    @property
    def numbers(self) -> tuple[tuple[str, Expr], ...]:
        """The arguments that are numbers and given, by name, in the order of the form."""
        return present(margin=self.margin, layer=self.layer, rerank=self.rerank, certify=self.certify)


Via = Filter | Amortized


@dataclass(frozen=True, slots=True)
class Draft(Node):
    """`draft slm(tokens=6, branches=2)`, `draft ngram("texts.txt")`, `draft none`: what proposes tokens to check.

    `model` is that of the method "model". `place` is the file of texts of "ngram", or the folder of the head of
    "eagle". Absent options are None.
    """

    method: DraftMethod
    model: ModelRef | None = None
    place: str | None = None
    tokens: int | None = None
    branches: int | None = None


@dataclass(frozen=True, slots=True)
class Generate(Node):
    """`generate MODEL n= temperature= top_p= top_k= min_p= stop= max_tokens= as … via … draft … into …`.

    Absent options and clauses are None. `draft` says what proposes tokens; `into` names a column for this call's text.
    """

    model: ModelRef
    n: Expr | None = None
    temperature: Expr | None = None
    top_p: Expr | None = None
    top_k: Expr | None = None
    min_p: Expr | None = None
    stop: Expr | None = None
    max_tokens: Expr | None = None
    target: Target | None = None
    via: Via | None = None
    draft: Draft | None = None
    into: Name | None = None


@dataclass(frozen=True, slots=True)
class Judge(Node):
    """`judge(MODEL, "rubric", LOW..HIGH)`: a model asked, in a chat turn of its own, for a whole number in a range."""

    model: ModelRef
    rubric: Template
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Score(Node):
    """`score VERIFIER reduce=… given PROBLEM into NAME`.

    A bare name is a declared model, `logprob`, or a Python scorer that the caller registered: the checker tells which.
    `given` is the problem that the verifier is shown with the text; None for the first turn of the conversation.
    `reduce` is None where it is left out.
    """

    verifier: ModelRef | Judge
    reduce: OneOf["last", "min", "mean", "prod", "sum"] | None = None
    given: Expr | None = None
    into: Name | None = None


@dataclass(frozen=True, slots=True)
class Extract(Node):
    """`extract name = /regex/`, `.json.path`, or the name of a Python extractor that the caller registered."""

    column: Name
    pattern: Regex | JsonPath | Name


@dataclass(frozen=True, slots=True)
class Where(Node):
    """`where EXPR`: the rows for which it holds."""

    condition: Expr


@dataclass(frozen=True, slots=True)
class Keep(Node):
    """`keep K by EXPR per COLUMN`: the K best rows, of each value of the column where one is given."""

    count: Expr
    by: Expr
    per: Name | None = None


@dataclass(frozen=True, slots=True)
class Best(Node):
    """`best by EXPR`."""

    by: Expr


@dataclass(frozen=True, slots=True)
class Vote(Node):
    """`vote COLUMN weight=EXPR equal=text|number|math`."""

    column: Name
    weight: Expr | None = None
    equal: OneOf["text", "number", "math"] = "text"


@dataclass(frozen=True, slots=True)
class Split(Node):
    """`split G`: each row G times, in groups; `split N by EXPR temperature=T`: N copies, shared out by a softmax."""

    count: Expr
    by: Expr | None = None
    temperature: Expr | None = None


@dataclass(frozen=True, slots=True)
class Branch(Node):
    """`branch { {…} {…} }`: sub-pipelines on the same rows, their rows one after another."""

    arms: tuple[tuple[Stage, ...], ...]


@dataclass(frozen=True, slots=True)
class Argument(Node):
    """One argument of `call`: `name` is None where it stands by its place."""

    name: str | None
    value: Expr


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`call PROGRAM(args) into NAME`: another program's stages in this place; its result in a column, if asked for."""

    program: str
    arguments: tuple[Argument, ...] = ()
    into: Name | None = None
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    """`repeat N until EXPR { … }`."""

    limit: Expr
    until: Expr | None
    body: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Peek(Node):
    """`peek { … }`: runs stages on the rows, and gives those back as they were, with the columns that were made."""

    body: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Return(Node):
    """`return EXPR`."""

    value: Expr


Stage = (
    Prompt
    | Chat
    | Generate
    | Score
    | Extract
    | Where
    | Keep
    | Best
    | Vote
    | Split
    | Repeat
    | Branch
    | Peek
    | Call
    | Return
)
