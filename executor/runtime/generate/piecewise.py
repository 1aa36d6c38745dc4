"""A sample that several requests draw, one after the other: what stands of it, and how the next one goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from qpdsl.executor.requests.drawing import DrawFigures
from qpdsl.executor.requests.request import Finish, Mask, Sample, StepCounts, Writer
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.generate.thought import ThoughtWatch
from qpdsl.executor.text.stop import StopWatch


@dataclass(eq=False, slots=True)
class PiecewiseSample:
    """What stands of a sample, and why it ended, None while it goes on.

    `masks` makes the mask that it began with, `mask` has taken its tokens; None where every id may come. `since`: from
    when it waits for its next token, on the clock of `time.perf_counter`.
    """

    continuation: Continuation
    key: int
    watch: StopWatch | ThoughtWatch | None
    masks: Callable[[], Mask] | None
    mask: Mask | None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    figures: tuple[DrawFigures, ...] = ()
    near_ties: int = 0
    written: tuple[tuple[int, Writer], ...] = ()
    finish: Finish | None = None
    since: float = field(default_factory=time.perf_counter)

    @property
    def text(self) -> tuple[int, ...]:
        """Its prompt and what stands."""
        return self.continuation.prompt + self.tokens

    @property
    def room(self) -> int:
        """How many tokens may follow."""
        return self.continuation.limit - len(self.tokens)

    def take(self, piece: Sample, writer: Writer | None = None) -> None:
        """Goes on by what a model drew; `writer` wrote what nothing else did."""
        own = dict(piece.steps.written)
        writers = [own.get(place, writer) for place in range(len(piece.tokens))]
        self.written += tuple((place, one) for place, one in enumerate(writers, len(self.tokens)) if one is not None)
        self.since = time.perf_counter() if piece.tokens else self.since
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs or ((piece.logprob,) if len(piece.tokens) == 1 else ())
        self.figures += piece.figures
        self.near_ties += piece.near_ties
        if piece.finish != "unsure" and (piece.finish != "length" or self.room <= 0):
            self.finish = piece.finish
        elif self.mask is not None:
            for token in piece.tokens:
                self.mask.push(token)

    @property
    def sample(self) -> Sample:
        """The whole of it, once it has ended."""
        assert self.finish is not None
        logprob = sum(self.logprobs)
        return Sample(
            self.tokens,
            self.finish,
            logprob,
            self.near_ties,
            self.watch,
            self.logprobs,
            StepCounts(written=self.written),
            figures=self.figures,
        )


Begun = tuple[Continuation, int, StopWatch | ThoughtWatch | None, Callable[[], Mask] | None, Mask | None]


def begun(sampling: Sampling, continuation: Continuation) -> Iterator[Begun]:
    """What each distinct sample of a row begins with, by the first fields of a `PiecewiseSample`."""
    masks = sampling.mask_of(continuation)
    for index, key in enumerate(continuation.keys[: sampling.distinct(continuation)]):
        watch = sampling.watch(continuation, index) if sampling.watched(continuation) else None
        yield continuation, key, watch, masks, None if masks is None else masks()
