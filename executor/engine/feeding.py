"""Decode steps that are launched before the host has the tokens that they begin with.

A token stays on the device and is fed to its sample's next step there, while its copy is on the way to the host. So the
device goes on without the host, which finds a step late that a sample has ended. The row that the sample has in the
step launched meanwhile is dropped then, and nothing of it is seen: until the host has a token no sequence is changed
for it but that it may hold a page more, and what the row writes lies behind all that is kept, or where later steps
write after it (vLLM's asynchronous scheduling).

Only plain decode steps feed and are fed, where the batch of the next one is known but for samples that may end: none
waits that could be admitted, and no memory has to be taken from others. Other steps wait until the one before them is
collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from qpdsl.executor.engine.launched_step import LaunchedStep
from qpdsl.executor.engine.memory.sequence import Chunk
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step.backends import ForwardOutput, KernelBackend


class Feeding:
    """The fed steps of one model, whose texts have at most `max_positions` tokens."""

    def __init__(self, backend: KernelBackend, scheduler: Scheduler, max_positions: int) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._max_positions = max_positions

    def next(self, feeder: LaunchedStep) -> list[Chunk]:
        """The chunks of a step that one in flight can feed; none where that is to be collected first."""
        samples = feeder.plain
        # What is drafted hangs on the token before.
        if samples is None or feeder.feeder is not None or any(sample.generation.draft for sample in samples):
            return []
        going = []
        for sample in samples:
            most = min(sample.prompt_length + sample.generation.max_tokens, self._max_positions)
            if len(sample.tokens) + 1 < most:
                going.append(sample)
        return self._scheduler.ahead(samples, going)

    @contextmanager
    def places(self, chunks: list[Chunk]) -> Iterator[None]:
        """In the block each sequence has a place for the token that the host does not have."""
        for chunk in chunks:
            chunk.sequence.tokens.append(0)
        try:
            yield
        finally:
            for chunk in chunks:
                chunk.sequence.tokens.pop()

    def forward(self, chunks: list[Chunk], feeder: LaunchedStep) -> ForwardOutput:
        """A forward over the tokens that `feeder` draws."""
        assert feeder.plain is not None and feeder.pending is not None and feeder.pending.tokens is not None
        tokens = feeder.pending.tokens
        rows = dict(zip(feeder.plain, feeder.rows or range(len(tokens)), strict=True))
        own = [rows[chunk.sequence] for chunk in chunks]
        if len(own) < len(tokens):
            tokens = tokens.index_select(0, *self._backend.staging.send([np.array(own)]))
        return self._backend.forward(chunks, fed=tokens)

    def settle(self, step: LaunchedStep) -> None:
        """Makes a step whose feeder was collected one of the samples that got their token, and of no others."""
        step.feeder = None
        # Who has ended has lost its pages, and who was given up has got no token.
        rows = [row for row, chunk in enumerate(step.chunks) if chunk.sequence.missing == 1]
        if len(rows) < len(step.chunks):
            step.chunks, step.rows = [step.chunks[row] for row in rows], rows
            step.plain = [chunk.sequence for chunk in step.chunks]
        self._scheduler.advance(step.chunks)
