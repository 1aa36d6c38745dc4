"""The objects that stages take besides values: models and verifiers, formats of an output, ways to decode it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final
from typing import Literal as OneOf

from qpdsl.errors import naming_keywords
from qpdsl.grammar.words import Confidence, DraftMethod, VerifierKind


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

    options: tuple[str, ...]


@final
@dataclass(frozen=True)
class Regex:
    """A text that a regex describes; made by `qp.regex`."""

    pattern: str


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
class Judge:
    """A model that is asked to rate a row's text; made by `qp.judge`."""

    model: Model | str
    rubric: str
    scale: tuple[int, int]


@final
@dataclass(frozen=True)
class LogProb:
    """The verifier that gives a row its own log-probability: `qp.logprob`."""


@final
@dataclass(frozen=True)
class Within:
    """How far a plan may go; made by `qp.epsilon` and `qp.loss`."""

    level: OneOf["exact", "epsilon", "loss"]
    bound: float | None


logprob: Final = LogProb()
exact: Final = Within("exact", None)


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


def choice(*options: str) -> Choice:
    """Output that is one of the options."""
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
    model: Model | str, threshold: float | None = None, *, by: Confidence = "probability", share: float | None = None
) -> Filter:
    """`via=`: the small model's token stands where its confidence is over the threshold.

    `by` says what the confidence is: the `probability` of the drawn token, the `margin` between the two likeliest ones,
    or by how little is open (`entropy`). With `share` in the place of a threshold, the threshold is held where the
    large model draws that share of the tokens.
    """
    return Filter(model, threshold, by, share)


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
    chooses among so many ids. `head`: the folder of an exit head that `qpdsl calibrate` wrote. `certify`: leave only
    where the exit leads by more than an error of its logits of so much could take away.
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
def early_exit(*, tokens: int | None = None, branches: int | None = None) -> Draft:
    """`draft=`: the model's own first layers propose tokens."""
    return Draft("early_exit", None, None, tokens, branches)


@naming_keywords
def eagle(folder: str | Path, *, tokens: int | None = None, branches: int | None = None) -> Draft:
    """`draft=`: a head that was trained for the model proposes tokens; `folder` holds it in EAGLE's format."""
    return Draft("eagle", None, str(folder), tokens, branches)


@naming_keywords
def judge(model: Model | str, rubric: str, scale: tuple[int, int]) -> Judge:
    """A verifier: the model is shown the problem, a row's text and the rubric.

    It can only answer with a whole number of the scale, which is the lowest of them and the highest.
    """
    return Judge(model, rubric, scale)


def epsilon(bound: float) -> Within:
    """`within=`: on the same prefix a plan's logits differ from the exact plan's by at most `bound`."""
    return Within("epsilon", bound)


def loss(bound: float) -> Within:
    """`within=`: at most this share of the results is expected to change."""
    return Within("loss", bound)
