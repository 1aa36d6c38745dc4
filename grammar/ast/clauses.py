"""What stages name behind their words: models, and the clauses `as`, `via` and `draft` of `generate`."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.grammar.ast.expressions import Expr, Regex, present
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.ast.schemas import TypeExpr
from qpdsl.grammar.words import Confidence, DraftMethod


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
