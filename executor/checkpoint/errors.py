"""The error of a model that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class ModelError(Exception):
    """A model that cannot be loaded or used; the message names it and says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model `{name}` cannot be loaded: {reason}")
        self._parts = name, reason

    def __reduce__(self) -> tuple[Any, ...]:
        # A process of a pool hands its error on to the one that waits for it.
        return ModelError, self._parts


def no_verifier(name: str, kinds: Iterable[str]) -> ModelError:
    """The error of a model that is to score and whose files do not tell how; `kinds` are those of verifiers."""
    return ModelError(
        name,
        "nothing in its files says that it is a verifier, or of which kind. A model that writes text scores by "
        '`score judge(llm, "…", 1..5)`, `score prob(llm, "…", "Yes", "No")` or `score logprob`; if it is a verifier, '
        f"name the kind behind its id, `kind=…`: {', '.join(kinds)}",
    )


class CheckpointError(Exception):
    """What is wrong with the files of a model, without the model's name; `ModelError` puts the name before it."""
