"""The objects that stages take besides values: models and verifiers, formats of an output, ways to decode it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

from qpdsl.errors import UsageError, naming_keywords
from qpdsl.grammar import ast
from qpdsl.grammar.words import Confidence, DraftMethod, Equality, VerifierKind, WithinLevel


@final
@dataclass(frozen=True, eq=False)
class Model:
    """A model of programs; made by `qp.model`."""

    id: str
    name: str | None
    kind: VerifierKind | None = None
    adapter: str | None = None
    think: str | None = None


@final
@dataclass(frozen=True)
class Choice:
    """One of several texts; made by `qp.choice`."""

    options: tuple[Any, ...]


@final
@dataclass(frozen=True)
class ToolChoice:
    """A call of one of several tools, or `calls` at most; made by `qp.call`."""

    tools: tuple[Any, ...]
    calls: int | None = None


@final
@dataclass(frozen=True)
class RegexText:
    """A text that a regex describes; made by `qp.regex`."""

    pattern: str


# What ends a sample: a text, a regex, or a list of them.
Stop = str | RegexText | Sequence[str | RegexText]
# What is added to the logits of tokens, which are texts or ids; or a list of records of a `token` and its `bias`.
LogitBias = Mapping[str, float] | Mapping[int, float] | Sequence[Mapping[str, Any]]


@final
@dataclass(frozen=True)
class Grammar:
    """A text that a grammar describes: the text of the grammar, or a file; made by `qp.lark`."""

    text: str | None
    path: str | None


@final
@dataclass(frozen=True, eq=False)
class NamedSchema:
    """A JSON document that a schema describes: as data, or in a file; made by `qp.schema`."""

    name: str
    data: Mapping[str, Any] | None
    path: str | None


@final
@dataclass(frozen=True, eq=False)
class Via:
    """A way to decode, by the values of its fields; made by `qp.filter`, `qp.contrast` and `qp.amortized`."""

    form: type[ast.Via]
    values: Mapping[str, object]


@final
@dataclass(frozen=True)
class DraftTarget:
    """What proposes tokens; made by `qp.draft`, `qp.ngram`, `qp.early_exit` and `qp.eagle`."""

    method: DraftMethod
    model: Model | str | None
    place: str | None
    tokens: int | None
    branches: int | None


@final
@dataclass(frozen=True, eq=False)
class VerifierTarget:
    """What `score` asks besides models and scorers, by the values of its own fields; made by `qp.judge` and others."""

    form: type[ast.Score]
    values: Mapping[str, object]

    def __lt__(self, bar: float) -> UnderBar:
        """What ends a row, for `until=`."""
        return UnderBar(self, bar)


@final
@dataclass(frozen=True, eq=False)
class UnderBar:
    """What ends a row: a score of it that falls under a bar; made by `qp.confidence(…) < bar`."""

    score: VerifierTarget
    bar: float


@final
@dataclass(frozen=True, eq=False)
class Compare:
    """A model that is asked which of two rows is better; made by `qp.compare`."""

    model: Model | str
    question: Callable[[Any, Any], str]
    both: bool


@final
@dataclass(frozen=True)
class Itself:
    """The program that is being composed, for a call of itself; made by `qp.itself`."""

    depth: int


@final
@dataclass(frozen=True)
class Permission:
    """How far a plan may go: `qp.exact`, `qp.replayable`, `qp.recorded`, or made by `qp.epsilon` and `qp.loss`."""

    level: WithinLevel
    bound: float | None


logprob: Final = VerifierTarget(ast.LogProb, {})


@final
@dataclass(frozen=True)
class BuiltIn:
    """What `extract` finds by name: `qp.final_answer`, `qp.last_number`, or `qp.boxed`, of LaTeX's `\\boxed{…}`."""

    name: Literal["boxed", "final_answer", "last_number"]


boxed: Final = BuiltIn("boxed")
final_answer: Final = BuiltIn("final_answer")
last_number: Final = BuiltIn("last_number")


@final
@dataclass(frozen=True)
class Failure:
    """Why code in a text fails its tests, for `extract`: `rows.extract("why", qp.failure, tests, timeout=5)`."""


failure: Final = Failure()
entropy: Final = VerifierTarget(ast.DrawScore, {"kind": "entropy"})
certainty: Final = VerifierTarget(ast.DrawScore, {"kind": "certainty"})


def confidence(window: int | None = None) -> VerifierTarget:
    """How sure the model was of the least sure group of `window` tokens one after another, by default of 256.

    `until=qp.confidence(window=64) < bar` ends a row where a group falls under the bar.
    """
    return VerifierTarget(ast.DrawScore, {"kind": "confidence", "window": window})


exact: Final = Permission("exact", None)
replayable: Final = Permission("replayable", None)
recorded: Final = Permission("recorded", None)


@naming_keywords
def model(
    id: str,
    *,
    name: str | None = None,
    kind: VerifierKind | None = None,
    adapter: str | Path | None = None,
    think: str | None = None,
) -> Model:
    """A built-in model (`zoo/…`), a folder, or a Hugging Face id. Nothing is loaded before a program runs.

    In a program's text the model has `name`, or else the name of the variable that it is in. `kind` says how a
    model that scores does it, where its own files do not say. `adapter` is a LoRA adapter in PEFT's format, a folder or
    a hub id, which is merged into the model's weights. `think` says what opens and closes its thoughts, as in
    `"<think>|</think>"`, or `"none"`, where its chat template does not.
    """
    return Model(id, name, kind, None if adapter is None else str(adapter), think)


def choice(*options: str | Sequence[str]) -> Choice:
    """Output that is one of the options: plain texts, or a parameter or column that is a list of texts."""
    if len(options) == 1 and isinstance(options[0], list | tuple):
        return Choice(tuple(options[0]))
    return Choice(options)


def call(*tools: Any, calls: int | None = None) -> ToolChoice:
    """Output that is a call of one of these tools, which `qp.tool` makes, or of a pydantic model as if it were one.

    The column is a record of a `name` and its `arguments`; `rows.tool` makes the call. With `str` among the tools the
    model may write a text in the place of a call, and the column is None then. With `calls` the column is a list of up
    to so many, which `rows.tool` makes side by side.
    """
    return ToolChoice(tools, calls)


def regex(pattern: str) -> RegexText:
    """Output, or a part of it, that a regex describes."""
    return RegexText(pattern)


def lark(grammar: str | Path) -> Grammar:
    """Output that a Lark grammar describes: its text, or a file (a Path, or a name that ends in `.lark`).

    A relative path counts from the folder of the Python file that the program is in.
    """
    if isinstance(grammar, Path) or (grammar.endswith(".lark") and "\n" not in grammar):
        return Grammar(None, str(grammar))
    return Grammar(grammar, None)


def schema(name: str, source: Mapping[str, Any] | str | Path) -> NamedSchema:
    """Output that a JSON Schema describes: the schema as data, or the path of its file, as `qp.lark` takes one."""
    if isinstance(source, (str, Path)):
        return NamedSchema(name, None, str(source))
    return NamedSchema(name, source, None)


@naming_keywords
def filter(
    model: Model | str,
    threshold: float | None = None,
    *,
    by: Confidence = "probability",
    share: float | None = None,
    rows: int | None = None,
    wait: float | None = None,
) -> Via:
    """`via=`: the small model's token stands where its confidence is over the threshold.

    `by` says what the confidence is: the `probability` of the drawn token, that of the likeliest one (`top`), the
    `margin` between the two likeliest ones, or how little is open (`entropy`). With `share` in the place of a
    threshold, the threshold is held where the large model draws that share of the tokens. What the large model has to
    draw waits until `rows` rows want it, or the first of them has waited for `wait` seconds; by default 16 and 0.1.
    """
    values = {"model": model, "threshold": threshold, "by": by, "share": share, "rows": rows, "wait": wait}
    return Via(ast.Filter, values)


@naming_keywords
def contrast(model: Model | str, alpha: float | None = None, *, beta: float | None = None) -> Via:
    """`via=`: draw what sets the model apart from a smaller one, by their logits: (1 + beta)·large − beta·small.

    Only tokens of at least `alpha` times the probability of the likeliest one may come, by default 0.1; `beta` is 0.5.
    """
    return Via(ast.Contrast, {"model": model, "alpha": alpha, "beta": beta})


@naming_keywords
def amortized(
    margin: float | None = None,
    *,
    layer: int | None = None,
    rerank: int | None = None,
    head: str | Path | None = None,
    certify: float | None = None,
) -> Via:
    """`via=`: leave at an early layer where its margin is at or over `margin`.

    `layer`: after so many layers, by default those of the head, else half of them. `rerank`: elsewhere the last layer
    chooses among so many ids. `head`: the folder of an exit head that `qpdsl calibrate` wrote; a
    relative path counts from the folder of the Python file that the program is in. `certify`: leave only where the
    exit leads by more than an error of its logits of so much could take away.
    """
    place = None if head is None else str(head)
    values = {"margin": margin, "layer": layer, "rerank": rerank, "head": place, "certify": certify}
    return Via(ast.Amortized, values)


@naming_keywords
def draft(model: Model | str, *, tokens: int | None = None, branches: int | None = None) -> DraftTarget:
    """`draft=`: a smaller model proposes up to so many tokens, each followed by up to `branches` others."""
    return DraftTarget("model", model, None, tokens, branches)


@naming_keywords
def ngram(texts: str | Path | None = None, *, tokens: int | None = None, branches: int | None = None) -> DraftTarget:
    """`draft=`: what followed the last tokens where they stood before; `texts` is a file that is looked into too.

    A relative path counts from the folder of the Python file that the program is in.
    """
    return DraftTarget("ngram", None, None if texts is None else str(texts), tokens, branches)


@naming_keywords
def early_exit(
    head: str | Path | None = None, *, tokens: int | None = None, branches: int | None = None
) -> DraftTarget:
    """`draft=`: the model's own first layers propose tokens; with `head` those up to an exit head, and through it.

    `head` is a folder that `qpdsl calibrate` wrote; a relative path counts from that of the program's Python file.
    """
    return DraftTarget("early_exit", None, None if head is None else str(head), tokens, branches)


@naming_keywords
def eagle(folder: str | Path, *, tokens: int | None = None, branches: int | None = None) -> DraftTarget:
    """`draft=`: a head that was trained for the model proposes tokens; `folder` holds it in EAGLE's format."""
    return DraftTarget("eagle", None, str(folder), tokens, branches)


@naming_keywords
def judge(
    model: Model | str, rubric: str, scale: tuple[int, int] | None = None, *, as_: tuple[int, int] | None = None
) -> VerifierTarget:
    """A verifier: the model is asked about a row, and can only answer with a whole number of the scale.

    With `scale` it is shown the problem, the row's text and the rubric; with `as_` in its place the rubric is all that
    it is shown, and holds what it needs of the row. Both give the lowest number and the highest.
    """
    if (scale is None) == (as_ is None):
        raise UsageError("`qp.judge` takes a scale or `as_`, one of them", 'as in `qp.judge(llm, "…", (1, 5))`')
    given = scale if as_ is None else as_
    assert given is not None
    return VerifierTarget(ast.Judge, {"model": model, "rubric": rubric, "scale": given, "whole": as_ is not None})


def prob(model: Model | str, question: str, answer: str, /, *others: str) -> VerifierTarget:
    """A verifier: the probability that the model answers the question so, among the answers where there are several."""
    return VerifierTarget(ast.Prob, {"model": model, "question": question, "answers": (answer, *others)})


def likelihood(model: Model | str, question: str, text: str, /) -> VerifierTarget:
    """A verifier: the log-probability that the model answers the question with a text; `reduce` is of its tokens."""
    return VerifierTarget(ast.Likelihood, {"model": model, "question": question, "answers": (text,)})


@naming_keywords
def equal(answer: object, reference: object, *, by: Equality = "text") -> VerifierTarget:
    """A verifier: 1 where both are the same answer, else 0, compared as texts, as numbers or as mathematics."""
    return VerifierTarget(ast.Equal, {"answer": answer, "reference": reference, "by": by})


def valid_json(schema: Any = None) -> VerifierTarget:
    """A verifier: 1 where a text is JSON, else 0; of a schema, which is what `as_` of `generate` takes."""
    return VerifierTarget(ast.ValidJson, {"schema": schema})


@naming_keywords
def passes(tests: str, *, timeout: float | None = None) -> VerifierTarget:
    """A verifier: 1 where the Python code in a text passes unit tests in a sandbox, else 0.

    It may use so many seconds of a processor, by default 5. Only a caller that says `allow_code=True` runs it.
    """
    return VerifierTarget(ast.Passes, {"tests": tests, "timeout": timeout})


@naming_keywords
def compare(model: Model | str, question: Callable[[Any, Any], str], *, both: bool = True) -> Compare:
    """`by=` of `best`, `keep` and `order`: in matches of two rows the model is asked which is better, "A" or "B".

    `question` makes the question of the two rows: `lambda a, b: f"… A: {a.text} B: {b.text}"`. With `both` it is asked
    in both orders.
    """
    return Compare(model, question, both)


@naming_keywords
def itself(*, depth: int) -> Itself:
    """The program that is being composed, for `rows.call_into`: it may so often stand within itself.

    Below that the column that the call makes is None.
    """
    return Itself(depth)


def epsilon(bound: float) -> Permission:
    """`within=`: on the same prefix a plan's logits differ from the exact plan's by at most `bound`."""
    return Permission("epsilon", bound)


def loss(bound: float) -> Permission:
    """`within=`: at most this share of the results is expected to change."""
    return Permission("loss", bound)
