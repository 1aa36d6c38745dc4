"""The built-in model family: small real models that ship with the package, ready to load from disk.

`path("zoo/counting")` is an ordinary Hugging Face folder. This folder holds weights, cards and names only; the models
are made by `qpdsl/family`. Importing it loads neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class BuiltinModel:
    """One model that ships with the package; `parameters` counts shared weights once."""

    name: str
    role: Literal["generator", "draft", "verifier"]
    description: str
    parameters: int


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
        description="a sixth of zoo/counting's size, distilled from it: drafts for it and filters its tokens",
        parameters=443_008,
    ),
    BuiltinModel(
        name="zoo/counting-prm",
        role="verifier",
        description="scores each step of a counting solution (process reward model, RLHFlow chat form)",
        parameters=4_443_904,
    ),
)


def path(name: str) -> Path:
    """The folder of a built-in model.

    Raises ValueError for a name that is not in `BUILTIN`.
    """
    names = [model.name for model in BUILTIN]
    if name not in names:
        from qpdsl.grammar.suggest import closest, listed

        guess = closest(name, names)
        meant = f"; did you mean `{guess}`?" if guess else ""
        raise ValueError(f"there is no built-in model `{name}`, only {listed(names, last='and')}{meant}")
    return _HERE / name.removeprefix("zoo/")
