"""Reads a tree of tokens branch by branch, for models whose layers keep states: these see one path of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Completion, LogProbRequest, TreeRequest, Values
from qpdsl.executor.requests.ticket import Ticket

Submit = Callable[[Ticket], None]


class BranchReads:
    """The requests that a `TreeRequest` becomes, one for each of its branches, and the ticket that they answer.

    They come together, so what they share in whole pages is computed once. `submit` queues a ticket for the engine,
    which frees it by `cancel` and moves it up by `promote`.
    """

    def __init__(
        self, request: TreeRequest, cancel: Callable[[Ticket], None], promote: Callable[[Ticket], None]
    ) -> None:
        self.ticket = Ticket(
            request, lambda ticket: self._each(Ticket.cancel), lambda ticket: self._each(Ticket.promote)
        )
        self._parts = [
            _BranchTicket(
                LogProbRequest(
                    request.prompt,
                    branch,
                    request.end,
                    priority=request.priority,
                    cached=request.cached,
                    client=request.client,
                ),
                cancel,
                promote,
                self._ended,
            )
            for branch in request.branches
        ]
        for part in self._parts:
            part.charged = self.ticket.charged

    def submit(self, submit: Submit) -> Ticket:
        """Queues them all; returns the ticket of the whole."""
        for part in self._parts:
            submit(part)
        return self.ticket

    def _each(self, call: Callable[[Ticket], None]) -> None:
        for part in self._parts:
            call(part)

    def _ended(self, part: Ticket, error: EngineError | None) -> None:
        if self.ticket.done:
            return
        if error is not None:
            self.ticket.fail(error)
            self._each(Ticket.cancel)
        elif all(part.done for part in self._parts):
            completions = [part.result() for part in self._parts]
            logprobs = tuple(chain.from_iterable(completion.logprobs for completion in completions))
            self.ticket.finish(Completion(logprobs=logprobs, cached=min(own.cached for own in completions)))


class _BranchTicket(Ticket):
    """One that tells when it is done."""

    def __init__(
        self,
        request: LogProbRequest,
        cancel: Callable[[Ticket], None],
        promote: Callable[[Ticket], None],
        ended: Callable[[Ticket, EngineError | None], None],
    ) -> None:
        super().__init__(request, cancel, promote)
        self._ended = ended

    def finish_read(self, values: Sequence[Values], cached: int) -> None:
        """See `Ticket`."""
        super().finish_read(values, cached)
        self._ended(self, None)

    def fail(self, error: EngineError) -> None:
        """See `Ticket`."""
        super().fail(error)
        self._ended(self, error)
