"""The handle of a submitted request: poll it after `step()`, or await it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence

from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Completion, GenerateRequest, LogProbRequest, Request, Sample


class Ticket:
    """Resolves to a `Completion`, or raises `EngineError`. Cancelling a task that awaits it frees its pages."""

    def __init__(
        self,
        request: Request,
        cancel: Callable[[Ticket], None],
        promote: Callable[[Ticket], None] = lambda ticket: None,
    ) -> None:
        self.request = request
        self._cancel = cancel
        self._promote = promote
        self._expected = len(request.keys) if isinstance(request, GenerateRequest) else 1
        self._samples: dict[int, Sample] = {}
        self._completion: Completion | None = None
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Called with the number of each sample and the sample, as soon as it has ended.
        self.each: Callable[[int, Sample], None] | None = None
        self.done = False

    def result(self) -> Completion:
        """The completion; raises EngineError if the request failed, RuntimeError if it is not done."""
        if self._error is not None:
            raise self._error
        if self._completion is None:
            raise RuntimeError("the request is not done")
        return self._completion

    def cancel(self) -> None:
        """Gives the request up and frees its pages; does nothing where it is done."""
        if not self.done:
            self._cancel(self)

    def wanted(self) -> None:
        """What was submitted to run ahead is wanted now."""
        if not self.done:
            self._promote(self)

    def finished(self, index: int, sample: Sample, cached: int) -> None:
        """Engine side: sample `index` has ended, with `cached` tokens of its prompt found; the last one resolves."""
        self._samples[index] = sample
        if self.each is not None:
            self.each(index, sample)
        if len(self._samples) == self._expected:
            samples = tuple(self._samples[index] for index in range(self._expected))
            self._resolve(Completion(samples=samples, cached=cached))

    def read(self, values: Sequence[tuple[float, ...]], cached: int) -> None:
        """Engine side: all positions of a request that reads are read, `values` at each of them."""
        if isinstance(self.request, LogProbRequest):
            self._resolve(Completion(logprobs=tuple(value for (value,) in values), cached=cached))
        else:
            self._resolve(Completion(logits=tuple(values), cached=cached))

    def fail(self, error: EngineError) -> None:
        """Engine side: the request cannot be served."""
        self._error = error
        self._wake()

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
