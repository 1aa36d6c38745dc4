"""The error of a model that cannot be used."""

from __future__ import annotations

from typing import Any


class ModelError(Exception):
    """A model that cannot be loaded or used; the message names it and says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model `{name}` cannot be loaded: {reason}")
        self._parts = name, reason

    def __reduce__(self) -> tuple[Any, ...]:
        # A process of a pool hands its error on to the one that waits for it.
        return ModelError, self._parts


class CheckpointError(Exception):
    """What is wrong with the files of a model, without the model's name; `ModelError` puts the name before it."""
