"""Stages, with their clauses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

from qpdsl.grammar.ast.expressions import Expr, JsonPath, Name, Regex, Template, present
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.ast.schemas import TypeExpr
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import Confidence, DraftMethod, Equality, JudgeReduce, Reduce, SearchMethod, Which


@dataclass(frozen=True, slots=True)
class Prompt(Node):
    """`prompt "…"`: starts the context with plain text."""

    text: Template


@dataclass(frozen=True, slots=True)
class Turn(Node):
    """One `role=expr` of a `chat` stage; `messages=` stands for the turns of a conversation."""

    role: OneOf["system", "user", "assistant", "messages"]
    content: Expr


@dataclass(frozen=True, slots=True)
class Chat(Node):
    """`chat system=… user=… assistant=…`: starts the context with turns, in the order written."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Say(Node):
    """`say "Wait, "`: goes on with the open assistant turn by a text that is given."""

    text: Expr


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
class OptionsTarget(Node):
    """`as choice(options)`: output is one of the texts in a list, which is a parameter or a column.

    Where a program is called, the value of its parameter stands in the place of the name.
    """

    options: Expr


@dataclass(frozen=True, slots=True)
class TypeTarget(Node):
    """`as int(1..10)`, `as [text](1..3)`, `as { name: text }`: output is a value of the type, as JSON."""

    type: TypeExpr


@dataclass(frozen=True, slots=True)
class GrammarTarget(Node):
    """`as grammar("file.lark")`: output held to a llguidance Lark grammar beside the program."""

    path: str


Target = SchemaTarget | ChoiceTarget | OptionsTarget | TypeTarget | GrammarTarget | Regex


@dataclass(frozen=True, slots=True)
class Filter(Node):
    """`via filter(MODEL, THRESHOLD, by= share= rows= wait=)`: the small model's token stands where it is over it.

    With `share` the threshold is none that is written: it is held so that the large model draws that share of tokens.
    Rows wait for the large model until there are `rows` of them, or `wait` seconds at most.
    """

    model: ModelRef
    threshold: Expr | None
    by: Confidence = "probability"
    share: Expr | None = None
    rows: Expr | None = None
    wait: Expr | None = None

    @property
    def numbers(self) -> tuple[tuple[str, Expr], ...]:
        """The arguments that are numbers and given, by name, in the order of the form."""
        return present(threshold=self.threshold, share=self.share, rows=self.rows, wait=self.wait)


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
    """`judge(MODEL, "rubric", LOW..HIGH)`: a model asked, in a chat turn of its own, for a whole number in a range.

    `whole`: written `judge(MODEL, "question") as int(LOW..HIGH)`. Then the text is all that the model is shown;
    otherwise it follows the problem and the row's text.
    """

    model: ModelRef
    rubric: Template
    low: int
    high: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Prob(Node):
    """`prob(MODEL, "question", "Yes", "No")`: how probable the first answer is, of all of them where there are more."""

    model: ModelRef
    question: Template
    answers: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class Equal(Node):
    """`equal(ANSWER, REFERENCE, by=text|number|math)`: whether two values of a row are the same answer."""

    answer: Expr
    reference: Expr
    by: Equality = "text"


@dataclass(frozen=True, slots=True)
class ValidJson(Node):
    """`json(SCHEMA)`: whether a text is a JSON document of the schema. `json` alone is a bare name."""

    schema: Name


@dataclass(frozen=True, slots=True)
class Passes(Node):
    """`passes(TESTS, timeout=SECONDS)`: whether the code in a text passes unit tests."""

    tests: Expr
    timeout: Expr | None = None


@dataclass(frozen=True, slots=True)
class WindowConfidence(Node):
    """`confidence(window=TOKENS)`: how sure the model was, of groups of so many tokens."""

    window: Expr


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """`compare(MODEL, "…{a.text}…{b.text}…", both=true)`: a model asked which of two rows, `a` and `b`, is better.

    `both`: it is asked with the rows in both orders.
    """

    model: ModelRef
    question: Template
    both: bool = True


Verifier = ModelRef | Judge | Prob | Equal | ValidJson | Passes | WindowConfidence


@dataclass(frozen=True, slots=True)
class Score(Node):
    """`score VERIFIER reduce=… of TEXT given PROBLEM into NAME`.

    A bare name is a declared model, `logprob`, `json`, or a Python scorer that the caller registered: the checker tells
    which. `of` is the text that is scored; None for that of the row. `given` is the problem that the verifier is shown
    with the text; None for the first turn of the conversation. `reduce` is None where it is left out.
    """

    verifier: Verifier
    reduce: Reduce | JudgeReduce | None = None
    of: Expr | None = None
    given: Expr | None = None
    into: Name | None = None


@dataclass(frozen=True, slots=True)
class Extract(Node):
    """`extract last NAME = /regex/`, `.json.path`, `boxed`, or the name of a Python extractor that is registered.

    `which` of the matches the column holds; `all` makes a list of them. It is "first" where the program does not say.
    """

    column: Name
    pattern: Regex | JsonPath | Name
    which: Which = "first"


@dataclass(frozen=True, slots=True)
class Let(Node):
    """`let NAME = EXPR`: a column that is worked out."""

    column: Name
    value: Expr


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
    """`best by EXPR per COLUMN`, or `best by compare(…)`: the best row, of each value of the column if one is given."""

    by: Expr | Compare
    per: Name | None = None


@dataclass(frozen=True, slots=True)
class Distinct(Node):
    """`distinct by EXPR per COLUMN`: the first row of each value, within each value of the column if one is given."""

    by: Expr
    per: Name | None = None


@dataclass(frozen=True, slots=True)
class Order(Node):
    """`order by EXPR`: the rows, greatest value first; texts in the order of the alphabet."""

    by: Expr


@dataclass(frozen=True, slots=True)
class Join(Node):
    """`join NAME = EXPR sep="…" per COLUMN`: one row of many, with the values of EXPR put together in a column.

    In EXPR the name `i` is the row's number, from 1. `sep` is None where it is left out: a newline.
    """

    column: Name
    value: Expr
    sep: Expr | None = None
    per: Name | None = None


@dataclass(frozen=True, slots=True)
class Vote(Node):
    """`vote COLUMN weight=EXPR equal=text|number|math decided=P`."""

    column: Name
    weight: Expr | None = None
    equal: Equality = "text"
    decided: Expr | None = None
    per: Name | None = None


@dataclass(frozen=True, slots=True)
class Split(Node):
    """`split G`: each row G times, in groups; `split N by EXPR temperature=T per COLUMN`: N copies by a softmax."""

    count: Expr
    by: Expr | None = None
    temperature: Expr | None = None
    per: Name | None = None


@dataclass(frozen=True, slots=True)
class Branch(Node):
    """`branch { {…} {…} }`: sub-pipelines on the same rows, their rows one after another."""

    arms: tuple[tuple[Stage, ...], ...]


@dataclass(frozen=True, slots=True)
class If(Node):
    """`if COND { … } else { … }`: the rows for which it holds through one block, the others through another.

    Without `else` the others pass: `otherwise` is empty. `else if` is a single `If` in it.
    """

    condition: Expr
    then: tuple[Stage, ...]
    otherwise: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True)
class Each(Node):
    """`each NAME in EXPR { … }`: a copy of the row for every element of a list; `.path` is a list in the row's text."""

    column: Name
    source: Expr | JsonPath
    body: tuple[Stage, ...]


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
class Search(Node):
    """`search puct by EXPR simulations=N c=C per_round=K { … }`: a tree of rows; the block makes a row's children.

    Absent options are None.
    """

    method: SearchMethod
    by: Expr
    simulations: Expr
    c: Expr | None
    per_round: Expr | None
    body: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Peek(Node):
    """`peek { … }`: runs stages on the rows, and gives those back as they were, with the columns that were made."""

    body: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Ask(Node):
    """`ask { … }`: runs stages for each row on a row of its own, which has its columns and no conversation.

    The row is given back as it was, with the columns that were made.
    """

    body: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Return(Node):
    """`return EXPR`."""

    value: Expr


Stage = (
    Prompt
    | Chat
    | Say
    | Generate
    | Score
    | Extract
    | Let
    | Where
    | Keep
    | Best
    | Distinct
    | Order
    | Join
    | Vote
    | Split
    | Repeat
    | Search
    | Branch
    | If
    | Each
    | Peek
    | Ask
    | Call
    | Return
)
