"""The built-in model family: tiny real models, trained by this package on the counting task, ready to load from disk.

`path("zoo/counting")` is an ordinary Hugging Face folder. Importing this package loads neither torch nor transformers.
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
    role: Literal["generator", "verifier"]
    description: str
    parameters: int


BUILTIN: tuple[BuiltinModel, ...] = (
    BuiltinModel(
        name="zoo/counting",
        role="generator",
        description="solves counting problems step by step, right about half the time",
        parameters=1_377_984,
    ),
    BuiltinModel(
        name="zoo/counting-prm",
        role="verifier",
        description="scores each step of a counting solution (process reward model, RLHFlow chat form)",
        parameters=2_337_600,
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
