"""The refusals of an engine: of a request, and of a model at load."""

from __future__ import annotations


class EngineError(Exception):
    """A request that the engine cannot serve; the message says why, with the arithmetic."""


class UnsupportedModel(Exception):
    """A model that cannot run on the paged engine; the message says why."""
