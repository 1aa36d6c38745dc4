"""What the runtime needs of an engine, whether it runs in this process or is a server elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from qpdsl.executor.requests.request import CONSTRAINT_NAMES, Feature, Repeats, Request
from qpdsl.executor.requests.ticket import Ticket

# What is said of a model without the feature, after its name.
_WITHOUT: Mapping[Feature, str] = {
    "sampling": "writes no text",
    "seeds": "does not sample by seed, so its samples cannot be reproduced",
    **{kind: f"cannot constrain its output to {name}" for kind, name in CONSTRAINT_NAMES.items()},
    "early_exit": "has no middle layer to exit at",
    "confidence": "does not report how sure it is of its tokens",
    "figures": "does not report what its tokens were drawn from",
    "contrast": "does not take or return the logits of all tokens, which a contrast compares",
    "thoughts": "does not part a thought from the answer that follows it",
    "drafts": "does not verify drafted tokens",
    "routing": "has one way to compute its head, so there is nothing to decide at a step",
    "logits": "does not return the logits of given tokens",
    "logprobs": "does not return the log-probabilities of given tokens",
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do for one model. A plan that needs more is refused before it runs.

    "sampling": it serves a `GenerateRequest`. "seeds": a sample with a temperature depends on its key, its prompt
    and its sampling parameters, so the same request gives the same tokens. "json_schema", "regex", "grammar", "choice":
    a request may have a `mask` that stands for such a constraint. "early_exit", "confidence", "figures", "contrast",
    "drafts", "routing": it may have an `exit`, a `confidence`, `figures`, a `contrast`, a `draft`, a `route`; with
    "contrast" it also serves a `LogitsRequest`. "logits": it serves a `ReadRequest`. "logprobs": it serves a
    `LogProbRequest` and a `TreeRequest`. "thoughts": a `GenerateRequest` may have a `thought`; the engine closes it and
    goes on with the answer.
    "forks": a prompt is computed once for all its samples and for later requests that begin with it; no request
    needs that, but without it shared prefixes save nothing. `spare_rows`: a step with so many sequences takes
    little longer than with one, so that work which may be for nothing costs little; None where that is not known.
    """

    features: frozenset[Feature]
    spare_rows: int | None = None
    repeats: Repeats = "exact"

    def refusal(self, needed: Iterable[Feature]) -> str | None:
        """What a model without one of these features cannot do, to be read after its name; None where it has all."""
        missing = sorted(set(needed) - self.features)
        return _WITHOUT[missing[0]] if missing else None


class Engine(Protocol):
    """Serves requests to the models that it has, by the names that it knows them by.

    An implementation makes a `Ticket` for each request, and resolves it on the event loop's thread while `drive` runs.
    How many requests are served side by side, and in what order, is its own affair: with the feature "seeds" a sample's
    tokens do not depend on it.
    """

    def capabilities(self, model: str) -> Capabilities:
        """What the model can be asked for. Raises KeyError where the engine does not have it."""
        ...

    def submit(self, model: str, request: Request) -> Ticket:
        """Queues a request. Raises EngineError where it can never be served, KeyError for an unknown model."""
        ...

    def busy(self, model: str) -> int:
        """The sequences that the model has to work at, running and waiting. A prompt counts for all its samples."""
        ...

    async def drive(self) -> None:
        """Serves requests until the task that runs it is cancelled. Raises whatever stops the engine as a whole."""
        ...


class EngineGroup:
    """An `Engine` of several. `place` says which of them has a model; `first` has all for which nothing was said."""

    def __init__(self, first: Engine) -> None:
        self._first = first
        self._others: list[Engine] = []
        self._places: dict[str, Engine] = {}

    def place(self, model: str, engine: Engine) -> None:
        """Has requests to a model go to `engine`, which becomes one of the group. Not while `drive` runs."""
        self._places[model] = engine
        if engine is not self._first and engine not in self._others:
            self._others.append(engine)

    def of(self, model: str) -> Engine:
        """The engine that serves a model."""
        return self._places.get(model, self._first)

    def capabilities(self, model: str) -> Capabilities:
        return self.of(model).capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        return self.of(model).submit(model, request)

    def busy(self, model: str) -> int:
        return self.of(model).busy(model)

    async def drive(self) -> None:
        """Drives all of them side by side until it is cancelled, or one of them raises; then the others are ended."""
        if not self._others:
            await self._first.drive()
            return
        drivers = [asyncio.create_task(engine.drive()) for engine in (self._first, *self._others)]
        try:
            await asyncio.wait(drivers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for driver in drivers:
                driver.cancel()
            ended = await asyncio.gather(*drivers, return_exceptions=True)
        failures = [end for end in ended if isinstance(end, BaseException)]
        others = [failure for failure in failures if not isinstance(failure, asyncio.CancelledError)]
        raise (others or failures or [RuntimeError("an engine stopped")])[0]
