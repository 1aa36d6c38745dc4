"""Speculative expansion: samples go on past the end of their step, as the future children of the row they make.

Source: section 7.1 of the thesis on a scalable runtime for LLM inference, "decode-aware speculative tree expansion". A
child that runs ahead has the prompt and the noise that the next round would give it, so its tokens are the same; what
the rows that are chosen can use is kept, the rest is given up. Such requests have the lowest priority, and are made
only while the model has fewer sequences than the plan's `floor`, and than a step of it has room for at little cost.

Rounds that are gathered all begin with the same rows: there the next round's samples of a row run ahead once one of
this round's has ended, however it did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from qpdsl.executor.events.events import Path, Rounds
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Sample
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.sampling import Sampling, TokenCounter
from qpdsl.executor.runtime.generate.thought import submit
from qpdsl.executor.runtime.instance.instance import Instance, OnToken, RowError, Usage


class _TextBuffer:
    """The text of samples that ran ahead. It goes to the listener once the samples are wanted."""

    def __init__(self) -> None:
        self._kept: list[tuple[Path, int, str, bool]] = []
        self._listener: OnToken | None = None

    def __call__(self, path: Path, stage: int, piece: str, thought: bool) -> None:
        if self._listener is None:
            self._kept.append((path, stage, piece, thought))
        else:
            self._listener(path, stage, piece, thought)

    def release_to(self, listener: OnToken) -> None:
        for kept in self._kept:
            listener(*kept)
        self._kept.clear()
        self._listener = listener


@dataclass(slots=True)
class _Held:
    """The future children of one row: what they continue, their request, and those of them that have ended."""

    sampling: Sampling
    continuation: Continuation
    ticket: Ticket
    text: _TextBuffer | None
    counter: TokenCounter
    ended: list[tuple[int, Sample]] = field(default_factory=list)


class SpeculativeExpansion:
    """What runs ahead of one `repeat`, which runs up to `limit` rounds. `usage` is what it has taken.

    `gathers`: each round begins with the rows that came into the first, on paths that end in its number.
    """

    def __init__(self, limit: int, *, gathers: bool = False) -> None:
        self.usage = Usage()
        self._limit, self._gathers = limit, gathers
        self._round = 0
        self._wanted: set[Path] = set()
        self._held: dict[tuple[Rounds, Path], _Held] = {}
        self._closed = False

    @property
    def counts(self) -> Mapping[str, int]:
        """What ran ahead, and the tokens of what was not used. They depend on the clock, and belong to no row."""
        unused = {"unused_prompt": self.usage.prompt_tokens, "unused_sampled": self.usage.sampled_tokens}
        return {**self.usage.counts, **unused}

    def taken(self, continuation: Continuation, instance: Instance) -> Ticket | None:
        """The request for the children of a row that is to go on now, where they ran ahead."""
        self._round = instance.rounds[-1]
        self._wanted.add(continuation.row.path)
        held = self._held.pop((instance.rounds, continuation.row.path), None)
        if held is None:
            return None
        if held.ticket.failed or held.continuation.prompt != continuation.prompt:
            self._drop(held)
            return None
        self.usage.counts["run_ahead_used"] += len(continuation.keys)
        if held.text is not None and instance.services.on_token is not None:
            held.text.release_to(instance.services.on_token)
        held.ticket.promote()
        for index, sample in held.ended:
            self._grow(held.sampling, held.continuation, index, sample)
        return held.ticket

    def drop_others(self, instance: Instance) -> None:
        """Gives up the children of rows that did not come into this round, and their children."""
        if self._gathers:
            return
        depth = {len(path) for path in self._wanted}
        for rounds, path in list(self._held):
            if not any(path[:length] in self._wanted for length in depth):
                self._drop(self._held.pop((rounds, path)))
        self._wanted.clear()

    def ended(self, sampling: Sampling, continuation: Continuation, index: int, sample: Sample) -> None:
        """Engine side: a sample of a row has ended. Its children are submitted between two steps."""
        copied = sampling.distinct(continuation) < continuation.options.count
        if self._goes_on(sample) and not copied and not self._closed:
            asyncio.get_running_loop().call_soon(self._grow, sampling, continuation, index, sample)

    def close(self) -> None:
        """Gives up whatever still runs ahead."""
        self._closed = True
        for held in self._held.values():
            self._drop(held)
        self._held.clear()

    def _goes_on(self, sample: Sample) -> bool:
        return self._gathers or sample.finish == "stop"

    def _grow(self, sampling: Sampling, parent: Continuation, index: int, sample: Sample) -> None:
        """Submits the next round's samples after one of this round's, where that is to be."""
        instance = sampling.instance
        *outer, now = instance.rounds
        rounds, path = (*outer, now + 1), parent.paths[index]
        if self._gathers:
            path = (*parent.row.path[:-1], now + 1)
        asked = parent.options.ahead
        depth = sampling.strategy.run_ahead if asked is None else asked
        near = 0 < now + 1 - self._round <= depth and now + 1 < self._limit
        if self._closed or not near or (rounds, path) in self._held:
            return
        engine, name = instance.services.engine, sampling.model.name
        spare = engine.capabilities(name).spare_rows
        if engine.busy(name) >= (instance.floor if spare is None else min(instance.floor, spare)):
            return
        text = _TextBuffer() if instance.services.on_token is not None else None
        onward = replace(sampling, instance=replace(instance, rounds=rounds, usage=self.usage), on_token=text)
        try:
            row = replace(parent.row, path=path) if self._gathers else sampling.child(parent, index, sample)
            (continuation,) = onward.continuations([row])
            if continuation is None:
                return
            counter = TokenCounter(sampling.model)
            (request,) = onward.requests(continuation, priority=1, counter=counter)
            ticket = submit(engine, name, request)
        except (RowError, EngineError):
            # Where it is right the next round will say so itself.
            return
        held = self._held[rounds, path] = _Held(onward, continuation, ticket, text, counter)
        ticket.on_sample = partial(self._child_ended, held)
        self.usage.counts["run_ahead"] += len(request.keys)

    def _child_ended(self, held: _Held, index: int, sample: Sample) -> None:
        if self._goes_on(sample):
            held.ended.append((index, sample))
        self.ended(held.sampling, held.continuation, index, sample)

    def _drop(self, held: _Held) -> None:
        held.ticket.cancel()
        self.usage.sampled_tokens += held.counter.total
        self.usage.spent(held.ticket)
