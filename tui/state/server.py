"""A model on a server: what is there, what waits and for what, and what it took, over time."""

from __future__ import annotations

from dataclasses import dataclass, field

from qpdsl.executor.events.events import ServerReported
from qpdsl.tui.state.engine import Series


@dataclass(slots=True)
class ServerState:
    """The latest report of one model, which counts from the beginning, and its series over time.

    In the series tokens are counted when a request is answered, and `sequences` are requests at the server.
    """

    latest: ServerReported
    most: int = 0
    series: Series = field(default_factory=Series)

    def add(self, event: ServerReported, *, first: bool) -> None:
        """With `first` it is not known since when its counts count."""
        before, self.latest = self.latest, event
        self.most = max(self.most, event.in_flight)
        bucket = self.series.at(event.at)
        if not first:
            bucket.decode += max(event.sampled_tokens - before.sampled_tokens, 0)
            bucket.prefill += max((event.prompt_tokens or 0) - (before.prompt_tokens or 0), 0)
        bucket.steps += 1
        bucket.sequences += event.in_flight
        bucket.waiting = event.queued

    def failing(self, now: float) -> float | None:
        """For how long all requests have failed; None where the server answers."""
        return None if not self.latest.failing else self.latest.failing + max(now - self.latest.at, 0.0)

    def resumes(self, now: float) -> float:
        """Seconds until one of them is sent again."""
        return max(self.latest.resumes - (now - self.latest.at), 0.0)
