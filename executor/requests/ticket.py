"""The handle of a submitted request: await it, or look at `done` after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Calls, Completion, Request, Sample, Values


class ForwardSeconds(Protocol):
    """Seconds of an engine's forwards that are charged to one request.

    `prompt` are those until its first token was drawn, or for all of a request that only reads; `drawn` those after.
    """

    @property
    def prompt(self) -> float: ...

    @property
    def drawn(self) -> float: ...


@dataclass(slots=True)
class EngineSeconds:
    """`ForwardSeconds` that an engine counts up, step by step."""

    prompt: float = 0.0
    drawn: float = 0.0


class Ticket:
    """Resolves to a `Completion`, or raises `EngineError`. Cancelling a task that awaits it gives the request up.

    `cancel` and `promote` are the engine's: called where the request is given up, and where spare work is needed
    now. `on_sample`, where set, is called with the number of each sample and the sample, as soon as it has ended, and
    `on_failure` with why the request cannot be served. `charged` is the engine's to count up: those of the step in
    which the request ends are there before anyone who awaits it goes on. `cached`: how many of its prompt's tokens were
    not computed for it, or for the sample that ended last, as far as is known by now.
    """

    def __init__(
        self,
        request: Request,
        cancel: Callable[[Ticket], None],
        promote: Callable[[Ticket], None] = lambda ticket: None,
    ) -> None:
        self.request = request
        self.on_sample: Callable[[int, Sample], None] | None = None
        self.on_failure: Callable[[EngineError], None] | None = None
        self.done = False
        self.charged = EngineSeconds()
        self.cached = 0
        self._cancel = cancel
        self._promote = promote
        self._samples: dict[int, Sample] = {}
        self._calls: Calls | None = None
        self._completion: Completion | None = None
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def forwards(self) -> ForwardSeconds:
        """The engine's seconds for this request so far; 0 where an engine does not say."""
        return self.charged

    @property
    def seconds(self) -> float:
        """All of `forwards`."""
        return self.forwards.prompt + self.forwards.drawn

    @property
    def shared(self) -> int:
        """How many of its samples, by now, were drawn for other requests."""
        return 0

    @property
    def saved_tokens(self) -> int:
        """The tokens of these samples."""
        return 0

    @property
    def calls(self) -> Calls | None:
        """What the request took at a server elsewhere, of samples those that have ended; None where it was at none."""
        return self._calls if self._completion is None else self._completion.calls

    @property
    def ended(self) -> Mapping[int, Sample]:
        """The samples that have ended by now, by number; those of a request that was given up or failed stay."""
        return self._samples

    @property
    def answered(self) -> Completion | None:
        """The completion; None where the request is not done, or failed."""
        return self._completion

    @property
    def failed(self) -> bool:
        """Whether it is done without a completion."""
        return self._error is not None

    def result(self) -> Completion:
        """The completion; raises EngineError if the request failed, RuntimeError if it is not done."""
        if self._error is not None:
            raise self._error
        if self._completion is None:
            raise RuntimeError("the request is not done")
        return self._completion

    def cancel(self) -> None:
        """Gives the request up and frees what it holds; does nothing where it is done."""
        if not self.done:
            self._cancel(self)

    def promote(self) -> None:
        """Moves spare work to priority 0: it is needed now."""
        if not self.done:
            self._promote(self)

    def finish_sample(self, index: int, sample: Sample, cached: int, calls: Calls | None = None) -> None:
        """Engine side: sample `index` has ended; `cached` tokens of its prompt were not computed for it.

        `calls`: what it took, where a server elsewhere gave it. The last sample to end resolves the ticket.
        """
        self._samples[index] = sample
        self.cached = cached
        if calls is not None:
            self._calls = calls if self._calls is None else self._calls + calls
        if self.on_sample is not None:
            self.on_sample(index, sample)
        if len(self._samples) == self.request.samples:
            samples = tuple(self._samples[index] for index in range(self.request.samples))
            self._resolve(Completion(samples=samples, cached=cached, calls=self._calls))

    def finish_read(self, values: Sequence[Values], cached: int) -> None:
        """Engine side: a request that reads has `values` at each of its positions."""
        request = self.request.reading
        assert request is not None
        self.cached = cached
        self._resolve(request.completion(values, cached))

    def finish(self, completion: Completion) -> None:
        """Engine side: a request that reads is answered as a whole."""
        self.cached = completion.cached
        self._resolve(completion)

    def fail(self, error: EngineError) -> None:
        """Engine side: the request cannot be served."""
        self._error = error
        self._wake()
        if self.on_failure is not None:
            self.on_failure(error)

    def _resolve(self, completion: Completion) -> None:
        self._completion = completion
        self._wake()

    def _wake(self) -> None:
        self.done = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __await__(self) -> Generator[None, None, Completion]:
        if not self.done:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                yield from self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()
