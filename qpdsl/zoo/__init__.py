"""The built-in model family: small real models that ship with the package, ready to load from disk.

`path("zoo/counting")` is an ordinary Hugging Face folder. This folder holds weights, cards and names only; `family/`
of the repository makes the models. Importing it loads neither torch nor transformers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qpdsl.grammar.model_id import base_of
from qpdsl.grammar.words import VerifierKind

_HERE = Path(__file__).parent
# The least that any shipped problem or note has is 0.44.
_SHARE_OF_KNOWN_WORDS = 0.4
# Their shortest note, "Ben orders 267 pillows.", has so many words.
_FEWEST_WORDS = 3


@dataclass(frozen=True)
class BuiltinModel:
    """One model that ships with the package; `parameters` counts shared weights once.

    `kind` is the kind of a verifier, None for a model that writes text.
    """

    name: str
    role: Literal["generator", "draft", "verifier"]
    description: str
    parameters: int
    kind: VerifierKind | None = None


BUILTIN: tuple[BuiltinModel, ...] = (
    BuiltinModel(
        name="zoo/counting",
        role="generator",
        description="solves counting problems step by step, right about half the time; extracts records as JSON",
        parameters=2_623_744,
    ),
    BuiltinModel(
        name="zoo/counting-mini",
        role="draft",
        description="an eighteenth of zoo/counting's size, and far worse: drafts for it and filters its tokens",
        parameters=143_680,
    ),
    BuiltinModel(
        name="zoo/counting-thinker",
        role="generator",
        description="thinks before it answers counting problems: it works them out digit by digit",
        parameters=2_017_536,
    ),
    BuiltinModel(
        name="zoo/counting-prm",
        role="verifier",
        description="scores each step of a counting solution (process reward model, RLHFlow chat form)",
        parameters=4_443_904,
        kind="rlhflow",
    ),
)


# Heads that draft for one of the models (EAGLE's format), named in `draft eagle("…")`.
HEADS = ("zoo/counting-eagle",)


def builtin(name: str) -> BuiltinModel | None:
    """The built-in model of that name, whatever adapter the name has; None where there is none."""
    return next((model for model in BUILTIN if model.name == base_of(name)), None)


def path(name: str) -> Path:
    """The folder of a built-in model.

    Raises ValueError for a name that is not in `BUILTIN`.
    """
    if builtin(name) is None:
        from qpdsl.grammar.suggest import closest, listed

        names = [model.name for model in BUILTIN]
        guess = closest(name, names)
        meant = f"; did you mean `{guess}`?" if guess else ""
        raise ValueError(f"there is no built-in model `{name}`, only {listed(names, last='and')}{meant}")
    return _HERE / base_of(name).removeprefix("zoo/")


def head_path(place: str) -> Path:
    """The folder of a head that drafts: one of `HEADS`, or a path."""
    return _HERE / place.removeprefix("zoo/") if place in HEADS else Path(place).expanduser()


def is_foreign(text: str) -> bool:
    """Whether a text of several words is shorter than any of the built-in models, or mostly of words that they lack."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    tokenizer = json.loads((path("zoo/counting") / "tokenizer.json").read_text("utf-8"))
    known = {token.replace("Ġ", "").lower() for token in tokenizer["model"]["vocab"]}
    few = len(words) < _FEWEST_WORDS
    return len(words) > 1 and (few or sum(word in known for word in words) < _SHARE_OF_KNOWN_WORDS * len(words))
