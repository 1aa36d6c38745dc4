"""The refusals of an engine: of a request, of a model at load, and of all that a server was to serve."""

from __future__ import annotations


class EngineError(Exception):
    """A request that the engine cannot serve; the message says why, with the arithmetic."""


class UnsupportedModel(Exception):
    """A model that cannot run on the paged engine; the message says why."""


class BudgetReached(EngineError):
    """A request that was not sent, since the tokens or the money for all of them are spent; the message says which."""


class RequestRefused(EngineError):
    """A request that a server calls a bad one; `param` names the field that it blames, where it does."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ServerGone(EngineError):
    """A server that has not answered for so long that it is not waited for any more; the message names it."""
