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
    """`via filter(MODEL, THRESHOLD)`: the small model's token stands where its confidence is at or over it."""

    model: ModelRef
    threshold: Expr


@dataclass(frozen=True, slots=True)
class Amortized(Node):
    """`via amortized(MARGIN)`: leave at the middle layer where its margin is at or over it."""

    margin: Expr


Via = Filter | Amortized


@dataclass(frozen=True, slots=True)
class Generate(Node):
    """`generate MODEL n= temperature= top_p= top_k= min_p= stop= max_tokens= as … via … draft … into …`.

    Absent options and clauses are None. `draft` names a model to draft with; `into` a column for this call's text.
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
    draft: ModelRef | None = None
    into: Name | None = None


@dataclass(frozen=True, slots=True)
class Judge(Node):
    """`judge(MODEL, "rubric")`: a model asked to rate the text in a chat turn of its own."""

    model: ModelRef
    rubric: Template


@dataclass(frozen=True, slots=True)
class Score(Node):
    """`score VERIFIER reduce=… into NAME`.

    A bare name is a declared model, `logprob`, or a Python scorer that the caller registered: the checker tells which.
    """

    verifier: ModelRef | Judge
    reduce: OneOf["last", "min", "mean", "prod", "sum"] = "last"
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
    """`split G`: each row G times, in groups."""

    count: Expr


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
class Return(Node):
    """`return EXPR`."""

    value: Expr


Stage = (
    Prompt | Chat | Generate | Score | Extract | Where | Keep | Best | Vote | Split | Repeat | Branch | Call | Return
)

# Items -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeRef(Node):
    """A type by name: text, int, float, bool, or a declared schema."""

    name: str


@dataclass(frozen=True, slots=True)
class RangeType(Node):
    """`int(0..150)`, `float(..1)`: a number between bounds, both inclusive; None where one is left open."""

    name: OneOf["int", "float"]
    low: int | float | None
    high: int | float | None


@dataclass(frozen=True, slots=True)
class TextType(Node):
    """`text(min_length=, max_length=, format=, pattern=)`; at least one is given."""

    min_length: int | None = None
    max_length: int | None = None
    format: str | None = None
    pattern: Regex | None = None


@dataclass(frozen=True, slots=True)
class ChoiceType(Node):
    """`choice("a", "b")`: one of these texts."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListType(Node):
    """`[type]`."""

    item: TypeExpr


@dataclass(frozen=True, slots=True)
class Field(Node):
    """`name: type`, or `name: type?` where it may be absent."""

    name: str
    type: TypeExpr
    optional: bool = False
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class RecordType(Node):
    """`{ name: type … }`: an object of exactly these fields."""

    fields: tuple[Field, ...]


TypeExpr = TypeRef | RangeType | TextType | ChoiceType | ListType | RecordType


@dataclass(frozen=True, slots=True)
class Schema(Node):
    """`schema NAME { … }` (`type`), or `schema NAME from "file.json"` (`path`): one of the two is given."""

    name: str
    type: RecordType | None = None
    path: str | None = None
    path_span: Span | None = field(default=None, compare=False, repr=False)
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Use(Node):
    """`use "file.qp"`: the models, schemas and programs that another file declares."""

    path: str


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
class Within(Node):
    """`within exact`, `within epsilon(1e-3)`, `within loss(0.02)`: how far a plan may go."""

    level: OneOf["exact", "epsilon", "loss"]
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Prefer(Node):
    """`prefer latency=0.8`: λ in λ·latency + (1−λ)·quality loss."""

    latency: float


@dataclass(frozen=True, slots=True)
class Program(Node):
    name: str
    params: tuple[Param, ...]
    returns: TypeRef | None
    body: tuple[Stage, ...]
    within: Within | None = None
    prefer: Prefer | None = None
    draft: ModelRef | None = None
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
