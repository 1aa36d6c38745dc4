"""What stages name behind their words: models, and the clauses `as`, `via` and `draft` of `generate`."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field

from qpdsl.grammar.ast.expressions import Expr, Regex, present
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.ast.schemas import TypeExpr
from qpdsl.grammar.ast.stage import Range, is_a, is_number, require
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import CONFIDENCES, DRAFTS, MAX_DRAFTED, NUMBERS, Confidence, DraftMethod


@dataclass(frozen=True, slots=True)
class ModelRef(Node):
    """The name of a declared model, or a quoted model id."""

    name: str
    quoted: bool


def model_named(name: str, span: Span) -> ModelRef:
    """A model by its name in a plan, `m` or `ms[0]`: an id that is no name is written in quotes."""
    return ModelRef(name, not name.partition("[")[0].isidentifier(), span=span)


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

    options: Expr = field(
        metadata=is_a(
            "value",
            reads="option",
            type="[text]",
            accepts=frozenset({"[text]"}),
            what="a list of texts",
            place="`choice`",
        )
    )


@dataclass(frozen=True, slots=True)
class TypeTarget(Node):
    """`as int(1..10)`, `as [text](1..3)`, `as { name: text }`: output is a value of the type, as JSON."""

    type: TypeExpr


@dataclass(frozen=True, slots=True)
class GrammarTarget(Node):
    """`as grammar("file.lark")`: output held to a llguidance Lark grammar beside the program."""

    path: str


@dataclass(frozen=True, slots=True)
class ToolRef(Node):
    """The name of a tool, or of a schema."""

    name: str


@dataclass(frozen=True, slots=True)
class CallTarget(Node):
    """`as call(search, Answer)`: output is a call of one of these tools, or of a schema as if it were a tool.

    It is written as the model writes calls, where its chat template tells how, else as JSON: a `name` with `arguments`.
    With `or_text`, as in `as call(search, text)`, the model may write a text in its place. With `calls=3` it may make
    up to `most` calls in one message.
    """

    tools: tuple[ToolRef, ...]
    or_text: bool = False
    most: int | None = None


ConstraintKind = typing.Literal["json_schema", "regex", "choice", "grammar"]
Target = SchemaTarget | ChoiceTarget | OptionsTarget | TypeTarget | GrammarTarget | CallTarget | Regex


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the target of a `generate` is compiled to, checked to compile.

    `source` is JSON Schema as JSON text, a regex, a JSON list of the options, or a llguidance Lark grammar, such that
    llguidance can hold to it. `name` is what the program calls it. `schema` is the JSON Schema that the program gives,
    which every output must satisfy; empty for other kinds. `type` is that of the column that `into` names. `options`
    are those of a choice that is known when it is made; then `source` is empty. `tools` describes the tools that a call
    may be of, as a JSON list of records of a `name`, a `description` and the schema of its `parameters`; with `or_text`
    a text may stand in the place of a call. `most_calls`: so many may stand in one message; None where it is one call.
    """

    kind: ConstraintKind
    source: str
    name: str
    schema: str = ""
    type: str = "text"
    options: Expr | None = None
    tools: str = ""
    or_text: bool = False
    most_calls: int | None = None

    def __post_init__(self) -> None:
        require(self.kind in typing.get_args(ConstraintKind), f"there is no constraint `{self.kind}`")


@dataclass(frozen=True, slots=True)
class Filter(Node):
    """`via filter(MODEL, THRESHOLD, by= share= rows= wait=)`: the small model's token stands where it is over it.

    `by` is what the confidence is: exp(−NLL) of the drawn token, p1 of the likeliest one (`top`), its lead p1 − p2, or
    1 − H/ln V of the distribution. `share`, in the place of a threshold, holds the threshold where the larger model
    draws that share of a sample's tokens. What the larger model has to draw waits until `rows` rows want it, `wait`
    seconds at most; what is absent is the strategy's to say.
    """

    word: typing.ClassVar[str] = "filter"

    model: ModelRef = field(metadata=is_a("model"))
    threshold: Expr | None = field(
        default=None,
        metadata=is_number("", Range("float", 0, 1), "threshold", reads="option", place="the threshold of `filter`"),
    )
    by: Confidence = field(
        default="probability", metadata=is_a("word", "by=", words=CONFIDENCES, code="QP125", what="no confidence")
    )
    share: Expr | None = field(
        default=None,
        metadata=is_number("share=", Range("float", 0, 1), "share", reads="option", place="`share` of `filter`"),
    )
    rows: Expr | None = field(
        default=None, metadata=is_number("rows=", Range("int", 1, 65536), "rows", place="`rows` of `filter`")
    )
    wait: Expr | None = field(
        default=None, metadata=is_number("wait=", Range("float", 0, 3600), "wait", place="`wait` of `filter`")
    )

    def __post_init__(self) -> None:
        require(self.by in CONFIDENCES, f"there is no confidence `{self.by}`")
        require((self.threshold is None) != (self.share is None), "a filter has a threshold or a share")

    @property
    def options(self) -> tuple[tuple[str, Expr], ...]:
        """What may differ from row to row, by name."""
        return present(threshold=self.threshold, share=self.share)

    @property
    def numbers(self) -> tuple[tuple[str, Expr], ...]:
        """The arguments that are numbers and given, by name, in the order of the form."""
        return (*self.options, *present(rows=self.rows, wait=self.wait))


@dataclass(frozen=True, slots=True)
class Amortized(Node):
    """Early exit: the model is left before its last layer where the margin there is at or over `margin`.

    It leaves after `layer` layers where the margin there, p1 − p2 over the allowed ids, is at or over `margin`. Without
    `layer`: that of the head, or else the middle one. Where the margin is smaller, all layers decide; with `rerank`
    they choose among so many ids, those that lead at the exit. `head` is the folder of an exit head (`qpdsl
    calibrate`); without one the model's own is used. With `certify` the token of the exit stands only where it leads by
    more than 2·`certify`/T, in logits with their noise, or 2·`certify` where T is 0; then `margin` may be absent.
    """

    word: typing.ClassVar[str] = "amortized"

    margin: Expr | None = field(
        default=None, metadata=is_number("", Range("float", 0, 1), "margin", place="the margin of `amortized`")
    )
    layer: Expr | None = field(
        default=None, metadata=is_number("layer=", Range("int", 1), "layer", place="`layer` of `amortized`")
    )
    rerank: Expr | None = field(
        default=None, metadata=is_number("rerank=", Range("int", 1), "rerank", place="`rerank` of `amortized`")
    )
    head: str | None = field(default=None, metadata=is_a("plain", "head=", what="the folder of an exit head"))
    certify: Expr | None = field(
        default=None, metadata=is_number("certify=", Range("float", 0), "certify", place="`certify` of `amortized`")
    )

    def __post_init__(self) -> None:
        require(self.margin is not None or self.certify is not None, "an early exit has a margin or a certificate")
        require(self.head != "", "an exit head has a folder")

    @property
    def numbers(self) -> tuple[tuple[str, Expr], ...]:
        """The arguments that are numbers and given, by name, in the order of the form."""
        return present(margin=self.margin, layer=self.layer, rerank=self.rerank, certify=self.certify)


# Where the program does not say: α of Li et al., 2022, β of O'Brien and Lewis, 2023.
USUAL_ALPHA = 0.1
USUAL_BETA = 0.5


@dataclass(frozen=True, slots=True)
class Contrast(Node):
    """Contrastive decoding, `via contrast(MODEL, ALPHA, beta=)`: what sets the model apart from a smaller one is drawn.

    Only tokens of at least `alpha` times the probability of the likeliest one may come, and the logits of these are
    (1 + `beta`) times the model's minus `beta` times the smaller one's.
    """

    word: typing.ClassVar[str] = "contrast"

    model: ModelRef = field(metadata=is_a("model"))
    alpha: Expr | None = field(
        default=None,
        metadata=is_number("", Range("float", 0, 1), "alpha", reads="option", place="the alpha of `contrast`"),
    )
    beta: Expr | None = field(
        default=None,
        metadata=is_number("beta=", Range("float", 0, 100), "beta", reads="option", place="`beta` of `contrast`"),
    )

    @property
    def options(self) -> tuple[tuple[str, Expr], ...]:
        """What may differ from row to row, by name; these are all its numbers."""
        return self.numbers

    @property
    def numbers(self) -> tuple[tuple[str, Expr], ...]:
        """The arguments that are numbers and given, by name, in the order of the form."""
        return present(alpha=self.alpha, beta=self.beta)


# By two models, which have the same tokens; and all ways.
Paired = Filter | Contrast
Via = Paired | Amortized


# The tokens of a group of confidence, where the program does not say.
USUAL_WINDOW = 256


@dataclass(frozen=True, slots=True)
class Until(Node):
    """`until confidence(window=TOKENS) < BAR`: a row ends where a full window of its tokens falls under the bar.

    The confidence is what `score confidence(window=TOKENS)` would give that window. A bar that is none ends no row.
    """

    written: typing.ClassVar[tuple[str, ...]] = ("window", "bar")

    bar: Expr = field(
        metadata=is_a(
            "value", "<", reads="option", type="float", accepts=NUMBERS, what="a number", place="the bar of `until`"
        )
    )
    window: Expr | None = field(
        default=None,
        metadata=is_number("window=", Range("int", 1), "window", reads="option", place="`window` of `until`"),
    )

    @property
    def options(self) -> tuple[tuple[str, Expr], ...]:
        """What may differ from row to row, by name."""
        return present(bar=self.bar, window=self.window)


@dataclass(frozen=True, slots=True)
class DraftClause(Node):
    """`draft slm(tokens=6, branches=2)`, `draft eagle("folder")`, `draft none`: what proposes tokens to check.

    `model` is that of the method "model". `place` is what another method names in its brackets: see `DRAFTS`. Absent
    options are None.
    """

    method: DraftMethod
    model: ModelRef | None = None
    place: str | None = None
    tokens: int | None = None
    branches: int | None = None


# How many tokens a draft has one after another where nobody says: a chain, and a tree.
DRAFTED, DRAFTED_LEVELS = 8, 3


@dataclass(frozen=True, slots=True)
class Draft:
    """Where a program wants tokens proposed from, at most `tokens` one after another. It changes no token.

    `model` is what drafts: a name of the plan's for "model", else the folder of a head, None for a method that needs no
    head or has the model's own. `texts` are looked into besides the sample and its prompt. With `branches` above 1 a
    token may be followed by so many. `none` means no drafts at all, the planner's own included.
    """

    method: DraftMethod
    model: str | None = None
    texts: str = field(default="", repr=False)
    tokens: int = DRAFTED
    branches: int = 1

    def __post_init__(self) -> None:
        require(self.method in typing.get_args(DraftMethod), f"there is no way to draft `{self.method}`")
        form = DRAFTS.get(self.method)
        needed = self.method == "model" or (form is not None and form.named)
        allowed = needed or (form is not None and not form.reads)
        require(allowed if self.model is not None else not needed, "only a model or a head has a name")
        require(drafted(self.tokens, self.branches) <= MAX_DRAFTED, f"a draft has at most {MAX_DRAFTED} tokens")


def drafted(tokens: int, branches: int) -> int:
    """The tokens of a whole draft of so many one after another, each with so many that may follow it."""
    return sum(branches**level for level in range(1, tokens + 1)) if branches > 1 else tokens


def usual_length(branches: int) -> int:
    """How many tokens one after another are drafted where nobody says: a tree has fewer than a chain."""
    if branches == 1:
        return DRAFTED
    return max(
        length for length in range(1, DRAFTED_LEVELS + 1) if length == 1 or drafted(length, branches) <= MAX_DRAFTED
    )


@dataclass(frozen=True, slots=True)
class GivenColumn:
    """A parameter of a called program whose argument differs from row to row: a column of its rows, and its value."""

    name: str
    type: str
    value: Expr
