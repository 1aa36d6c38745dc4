"""The stages of a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

from qpdsl.grammar.ast.clauses import Draft, ModelRef, Target, Via
from qpdsl.grammar.ast.expressions import Expr, JsonPath, Name, Regex, Template
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.ast.verifiers import Compare, Verifier
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import Equality, JudgeReduce, Reduce, SearchMethod, Which


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
class Strategy(Node):
    """`strategy { {…} or {…} }`: blocks that aim at the same, of which a budget has one run for a problem."""

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
    | Strategy
    | If
    | Each
    | Peek
    | Ask
    | Call
    | Return
)
