"""The objects that stages take besides values: models and verifiers, formats of an output, ways to decode it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from qpdsl.errors import UsageError, naming_keywords
from qpdsl.grammar.words import Confidence, DraftMethod, DrawFigure, Equality, VerifierKind, WithinLevel


@final
@dataclass(frozen=True, eq=False)
class Model:
    """A model of programs; made by `qp.model`."""

    id: str
    name: str | None
    kind: VerifierKind | None = None
    adapter: str | None = None


@final
@dataclass(frozen=True)
class Choice:
    """One of several texts; made by `qp.choice`."""

    options: tuple[Any, ...]


@final
@dataclass(frozen=True)
class Regex:
    """A text that a regex describes; made by `qp.regex`."""

    pattern: str


# What ends a sample: a text, a regex, or a list of them.
Stop = str | Regex | Sequence[str | Regex]


@final
@dataclass(frozen=True)
class Grammar:
    """A text that a grammar describes: the text of the grammar, or a file; made by `qp.lark`."""

    text: str | None
    path: str | None


@final
@dataclass(frozen=True, eq=False)
class Schema:
    """A JSON document that a schema describes: as data, or in a file; made by `qp.schema`."""

    name: str
    data: Mapping[str, Any] | None
    path: str | None


@final
@dataclass(frozen=True)
class Filter:
    """Decoding by a small model, filtered by its confidence; made by `qp.filter`."""

    model: Model | str
    threshold: float | None
    by: Confidence
    share: float | None
    rows: int | None
    wait: float | None


@final
@dataclass(frozen=True)
class Amortized:
    """Decoding that leaves at an early layer where it is sure; made by `qp.amortized`."""

    margin: float | None
    layer: int | None
    rerank: int | None
    head: str | None
    certify: float | None


@final
@dataclass(frozen=True)
class Draft:
    """What proposes tokens; made by `qp.draft`, `qp.ngram`, `qp.early_exit` and `qp.eagle`."""

    method: DraftMethod
    model: Model | str | None
    place: str | None
    tokens: int | None
    branches: int | None


@final
@dataclass(frozen=True)
class LogProb:
    """The verifier that gives a row its own log-probability: `qp.logprob`."""


@final
@dataclass(frozen=True)
class Judge:
    """A model that is asked to rate a row; made by `qp.judge`. `whole`: the rubric is the whole question."""

    model: Model | str
    rubric: str
    scale: tuple[int, int]
    whole: bool = False


@final
@dataclass(frozen=True)
class Prob:
    """How probable an answer is to a model that is asked; made by `qp.prob`."""

    model: Model | str
    question: str
    answers: tuple[str, ...]


@final
@dataclass(frozen=True, eq=False)
class Equal:
    """Whether two values of a row are the same answer; made by `qp.equal`."""

    answer: object
    reference: object
    by: Equality


@final
@dataclass(frozen=True, eq=False)
class ValidJson:
    """Whether a text is JSON, of a schema where there is one; made by `qp.valid_json`."""

    schema: Any


@final
@dataclass(frozen=True, eq=False)
class Passes:
    """Whether the code in a text passes unit tests; made by `qp.passes`."""

    tests: str
    timeout: float | None


@final
@dataclass(frozen=True, eq=False)
class Compare:
    """A model that is asked which of two rows is better; made by `qp.compare`."""

    model: Model | str
    question: Callable[[Any, Any], str]
    both: bool


@final
@dataclass(frozen=True)
class OfDraws:
    """How sure the model was of its tokens: `qp.entropy`, `qp.certainty`, or made by `qp.confidence`."""

    kind: DrawFigure
    window: int | None = None


Verifier = Model | Judge | Prob | Equal | ValidJson | Passes | LogProb | OfDraws


@final
@dataclass(frozen=True)
class Within:
    """How far a plan may go: `qp.exact`, `qp.replayable`, `qp.recorded`, or made by `qp.epsilon` and `qp.loss`."""

    level: WithinLevel
    bound: float | None


logprob: Final = LogProb()


@final
@dataclass(frozen=True)
class Boxed:
    """What stands in the `\\boxed{…}` of LaTeX, for `extract`: `qp.boxed`."""


boxed: Final = Boxed()
entropy: Final = OfDraws("entropy")
certainty: Final = OfDraws("certainty")


def confidence(window: int | None = None) -> OfDraws:
    """How sure the model was of the least sure group of `window` tokens one after another, by default of 256."""
    return OfDraws("confidence", window)


exact: Final = Within("exact", None)
replayable: Final = Within("replayable", None)
recorded: Final = Within("recorded", None)


@naming_keywords
def model(
    id: str, *, name: str | None = None, kind: VerifierKind | None = None, adapter: str | Path | None = None
) -> Model:
    """A built-in model (`zoo/…`), a folder, or a Hugging Face id. Nothing is loaded before a program runs.

    In a program's text the model has `name`, or else the name of the variable that it is in. `kind` says how a
    model that scores does it, where its own files do not say. `adapter` is a LoRA adapter in PEFT's format, a folder or
    a hub id, which is merged into the model's weights.
    """
    return Model(id, name, kind, None if adapter is None else str(adapter))


def choice(*options: str | Sequence[str]) -> Choice:
    """Output that is one of the options: plain texts, or a parameter or column that is a list of texts."""
    if len(options) == 1 and isinstance(options[0], list | tuple):
        return Choice(tuple(options[0]))
    return Choice(options)


def regex(pattern: str) -> Regex:
    """Output, or a part of it, that a regex describes."""
    return Regex(pattern)


def lark(grammar: str | Path) -> Grammar:
    """Output that a Lark grammar describes: its text, or a file (a Path, or a name that ends in `.lark`).

    A relative path counts from the folder of the Python file that the program is in.
    """
    if isinstance(grammar, Path) or (grammar.endswith(".lark") and "\n" not in grammar):
        return Grammar(None, str(grammar))
    return Grammar(grammar, None)


def schema(name: str, source: Mapping[str, Any] | str | Path) -> Schema:
    """Output that a JSON Schema describes: the schema as data, or the path of its file, as `qp.lark` takes one."""
    if isinstance(source, (str, Path)):
        return Schema(name, None, str(source))
    return Schema(name, source, None)


@naming_keywords
def filter(
    model: Model | str,
    threshold: float | None = None,
    *,
    by: Confidence = "probability",
    share: float | None = None,
    rows: int | None = None,
    wait: float | None = None,
) -> Filter:
    """`via=`: the small model's token stands where its confidence is over the threshold.

    `by` says what the confidence is: the `probability` of the drawn token, the `margin` between the two likeliest ones,
    or by how little is open (`entropy`). With `share` in the place of a threshold, the threshold is held where the
    large model draws that share of the tokens. What the large model has to draw waits until `rows` rows want it, or the
    first of them has waited for `wait` seconds; by default 16 and 0.1.
    """
    return Filter(model, threshold, by, share, rows, wait)


@naming_keywords
def amortized(
    margin: float | None = None,
    *,
    layer: int | None = None,
    rerank: int | None = None,
    head: str | Path | None = None,
    certify: float | None = None,
) -> Amortized:
    """`via=`: leave at an early layer where its margin is at or over `margin`.

    `layer`: after so many layers, by default those of the head, else half of them. `rerank`: elsewhere the last layer
    chooses among so many ids. `head`: the folder of an exit head that `qpdsl calibrate` wrote; a
    relative path counts from the folder of the Python file that the program is in. `certify`: leave only where the
    exit leads by more than an error of its logits of so much could take away.
    """
    return Amortized(margin, layer, rerank, None if head is None else str(head), certify)


@naming_keywords
def draft(model: Model | str, *, tokens: int | None = None, branches: int | None = None) -> Draft:
    """`draft=`: a smaller model proposes up to so many tokens, each followed by up to `branches` others."""
    return Draft("model", model, None, tokens, branches)


@naming_keywords
def ngram(texts: str | Path | None = None, *, tokens: int | None = None, branches: int | None = None) -> Draft:
    """`draft=`: what followed the last tokens where they stood before; `texts` is a file that is looked into too.

    A relative path counts from the folder of the Python file that the program is in.
    """
    return Draft("ngram", None, None if texts is None else str(texts), tokens, branches)


@naming_keywords
def early_exit(head: str | Path | None = None, *, tokens: int | None = None, branches: int | None = None) -> Draft:
    """`draft=`: the model's own first layers propose tokens; with `head` those up to an exit head, and through it.

    `head` is a folder that `qpdsl calibrate` wrote; a relative path counts from that of the program's Python file.
    """
    return Draft("early_exit", None, None if head is None else str(head), tokens, branches)


@naming_keywords
def eagle(folder: str | Path, *, tokens: int | None = None, branches: int | None = None) -> Draft:
    """`draft=`: a head that was trained for the model proposes tokens; `folder` holds it in EAGLE's format."""
    return Draft("eagle", None, str(folder), tokens, branches)


@naming_keywords
def judge(
    model: Model | str, rubric: str, scale: tuple[int, int] | None = None, *, as_: tuple[int, int] | None = None
) -> Judge:
    """A verifier: the model is asked about a row, and can only answer with a whole number of the scale.

    With `scale` it is shown the problem, the row's text and the rubric; with `as_` in its place the rubric is all that
    it is shown, and holds what it needs of the row. Both give the lowest number and the highest.
    """
    if (scale is None) == (as_ is None):
        raise UsageError("`qp.judge` takes a scale or `as_`, one of them", 'as in `qp.judge(llm, "…", (1, 5))`')
    given = scale if as_ is None else as_
    assert given is not None
    return Judge(model, rubric, given, as_ is not None)


def prob(model: Model | str, question: str, answer: str, /, *others: str) -> Prob:
    """A verifier: the probability that the model answers the question so, among the answers where there are several."""
    return Prob(model, question, (answer, *others))


@naming_keywords
def equal(answer: object, reference: object, *, by: Equality = "text") -> Equal:
    """A verifier: 1 where both are the same answer, else 0, compared as texts, as numbers or as mathematics."""
    return Equal(answer, reference, by)


def valid_json(schema: Any = None) -> ValidJson:
    """A verifier: 1 where a text is JSON, else 0; of a schema, which is what `as_` of `generate` takes."""
    return ValidJson(schema)


@naming_keywords
def passes(tests: str, *, timeout: float | None = None) -> Passes:
    """A verifier: 1 where the Python code in a text passes unit tests in a sandbox, else 0.

    It may use so many seconds of a processor, by default 5. Only a caller that says `allow_code=True` runs it.
    """
    return Passes(tests, timeout)


@naming_keywords
def compare(model: Model | str, question: Callable[[Any, Any], str], *, both: bool = True) -> Compare:
    """`by=` of `best`: a tournament, in whose matches the model is asked which of two rows is better, "A" or "B".

    `question` makes the question of the two rows: `lambda a, b: f"… A: {a.text} B: {b.text}"`. With `both` it is asked
    in both orders.
    """
    return Compare(model, question, both)


def epsilon(bound: float) -> Within:
    """`within=`: on the same prefix a plan's logits differ from the exact plan's by at most `bound`."""
    return Within("epsilon", bound)


def loss(bound: float) -> Within:
    """`within=`: at most this share of the results is expected to change."""
    return Within("loss", bound)
