"""The refusal of a model at load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class EngineError(Exception):
    """A request that the engine cannot serve; the message says why, with the arithmetic."""


class UnsupportedModel(Exception):
    """A model that cannot run on the paged engine; the message says why."""
