"""The abstract syntax tree: frozen, typed, a span on every node.

Spans take no part in equality: two texts that differ in layout alone parse to equal trees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.source import Source, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    span: Span = field(compare=False, repr=False)


# Expressions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A number, a truth value or `none`."""

    value: int | float | bool | None


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A column, a parameter or, where one is expected, a model."""

    id: str


@dataclass(frozen=True, slots=True)
class Template(Node):
    """A string: literal text and `{name}` interpolations, in order. A plain string is one `str` part (or none)."""

    parts: tuple[str | Name, ...]


@dataclass(frozen=True, slots=True)
class Regex(Node):
    """`/pattern/`, in the dialect that Python's `re` and llguidance share; checked to compile."""

    pattern: str


@dataclass(frozen=True, slots=True)
class JsonPath(Node):
    """`.name.other[0]`: field names and list indices, outermost first."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    op: OneOf["-", "not"]
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Node):
    op: OneOf["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Matches(Node):
    """`expr matches /regex/`: true where the regex is found anywhere in the text."""

    subject: Expr
    regex: Regex


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """A call of one of the built-in functions: len, min, max, mean, all, any."""

    function: str
    args: tuple[Expr, ...]
    name_span: Span = field(compare=False, repr=False, kw_only=True)


Expr = Literal | Name | Template | Unary | Binary | Matches | Apply

# Stages ----------------------------------------------------------------------------------------


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
class Generate(Node):
    """`generate MODEL n= temperature= top_p= top_k= min_p= stop= max_tokens=`; absent options are None."""

    model: ModelRef
    n: Expr | None = None
    temperature: Expr | None = None
    top_p: Expr | None = None
    top_k: Expr | None = None
    min_p: Expr | None = None
    stop: Expr | None = None
    max_tokens: Expr | None = None


@dataclass(frozen=True, slots=True)
class Score(Node):
    """`score VERIFIER reduce=… into NAME`."""

    verifier: ModelRef
    reduce: OneOf["last", "min", "mean", "prod", "sum"] = "last"
    into: Name | None = None


@dataclass(frozen=True, slots=True)
class Extract(Node):
    """`extract name = /regex/` or `.json.path`."""

    column: Name
    pattern: Regex | JsonPath


@dataclass(frozen=True, slots=True)
class Keep(Node):
    """`keep K by EXPR`."""

    count: Expr
    by: Expr


@dataclass(frozen=True, slots=True)
class Best(Node):
    """`best by EXPR`."""

    by: Expr


@dataclass(frozen=True, slots=True)
class Vote(Node):
    """`vote COLUMN weight=EXPR`."""

    column: Name
    weight: Expr | None = None


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    """`repeat N until EXPR { … }`."""

    limit: Expr
    until: Expr | None
    body: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Return(Node):
    """`return EXPR`."""

    value: Expr


Stage = Prompt | Chat | Generate | Score | Extract | Keep | Best | Vote | Repeat | Return

# Items -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeRef(Node):
    """A type by name: text, int, float or bool."""

    name: str


@dataclass(frozen=True, slots=True)
class Param(Node):
    name: str
    type: TypeRef
    default: Expr | None = None
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Model(Node):
    """`model NAME = "id"`."""

    name: str
    id: str
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Program(Node):
    name: str
    params: tuple[Param, ...]
    returns: TypeRef | None
    body: tuple[Stage, ...]
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
    complete: bool = field(default=True, compare=False)
    errors: tuple[Diagnostic, ...] = field(default=(), compare=False, repr=False)
    gaps: tuple[Span, ...] = field(default=(), compare=False, repr=False)
