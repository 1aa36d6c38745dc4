"""The masks of a step: filled while the forward runs, since they depend on tokens that are known before it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple

import numpy as np

from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.step.draws import Masks
from qpdsl.executor.requests.request import Mask

# To hand work to a thread and take it back costs up to so many seconds: what takes less is done at once.
_HAND_OVER = 1e-4
# By how much the seconds of earlier steps are forgotten at each.
_FORGETTING = 0.1


class MaskFiller:
    """Asks the masks of a step, for a vocabulary of so many ids."""

    def __init__(self, vocabulary: int) -> None:
        self._words = -(-vocabulary // 32)
        self._row_seconds = 0.0

    def begin(self, chunks: Several[Chunk], *, launches: bool = False) -> Filling:
        """Begins to fill them, before the chunks are computed.

        By what a row took lately, it is done beside the forward, or at once where that is quicker. Where a forward only
        `launches` what a device then computes, few are filled when they are asked for, which is under that forward.
        """
        filling = Filling(chunks, self._words, self._took)
        if filling.rows * self._row_seconds >= _HAND_OVER:
            SIDE_THREAD.begin(filling.job)
        elif not launches:
            filling.masks()
        return filling

    def _took(self, seconds: float, rows: int) -> None:
        self._row_seconds += _FORGETTING * (seconds / rows - self._row_seconds)


class _Part(NamedTuple):
    """A mask of the step: its sequence has a row for its tokens, and one more after each of `paths`."""

    sequence: Sequence
    mask: Mask
    paths: list[tuple[int, ...]]


class Filling:
    """The masks of one step, maybe under way. As a context, it leaves nobody at work on them behind an exception.

    `took` is told how many seconds how many rows took. `waited` are the seconds that the step stood still for them.
    """

    def __init__(self, chunks: Several[Chunk], words: int, took: Callable[[float, int], None]) -> None:
        self._words = words
        self._took = took
        self._masks: Masks | None = None
        # What a chunk reads is asked now: its sequence goes on while the job runs.
        self._parts: dict[type[Mask], list[_Part]] = {}
        self.rows = 0
        for chunk in chunks:
            mask = chunk.sequence.mask
            if mask is not None and chunk.read_rows:
                paths = [] if chunk.proposal is None else chunk.proposal.paths
                self._parts.setdefault(type(mask), []).append(_Part(chunk.sequence, mask, paths))
                self.rows += 1 + len(paths)
        self.job = SideJob(self._fill)
        self.waited = 0.0

    def __enter__(self) -> Filling:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.job.cancel()

    def masks(self) -> Masks | None:
        """What they allow, as soon as it is known; None where nothing is masked."""
        if self._parts and self._masks is None:
            start = time.perf_counter()
            self.job.wait()
            self.waited += time.perf_counter() - start
        return self._masks

    def _fill(self) -> None:
        start = time.perf_counter()
        bits = np.zeros((self.rows, self._words), dtype=np.int32)
        first: dict[Sequence, int] = {}
        row = 0
        for parts in self._parts.values():
            masks, start_row = [part.mask for part in parts], row
            for part in parts:
                first[part.sequence] = row
                row += 1 + len(part.paths)
            if row - start_row == len(parts):
                masks[0].fill(masks, bits[start_row:row])
            else:
                masks[0].fill_ahead(masks, [part.paths for part in parts], bits[start_row:row])
        counts = np.bitwise_count(bits.view(np.uint32)).sum(axis=1, dtype=np.int64)
        if self.rows > len(first):
            # Nobody will draw behind a token that cannot come, but a draw needs something to choose from.
            behind = np.ones(self.rows, dtype=bool)
            behind[list(first.values())] = False
            behind &= counts == 0
            bits[behind, 0], counts[behind] = 1, 1
        self._masks = Masks(bits, counts, first)
        self._took(time.perf_counter() - start, self.rows)


class SideJob:
    """A function that the side thread runs, or whoever needs its result before that thread has come to it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Runs the function unless that was done, and keeps what it raises for `wait`."""
        with self._lock:
            function, self._function = self._function, None
            if function is not None:
                try:
                    function()
                except BaseException as error:  # whatever it is, it belongs to the one who waits
                    self._error = error

    def wait(self) -> None:
        """Returns when the function has ended. Raises what it raised."""
        interrupt = self._settled(self.run)
        if self._error is not None:
            raise self._error
        if interrupt is not None:
            raise interrupt

    def cancel(self) -> None:
        """The function is not running when this returns, and will not run any more."""
        interrupt = self._settled(self._drop)
        if interrupt is not None:
            raise interrupt

    def _drop(self) -> None:
        with self._lock:
            self._function = None

    def _settled(self, settle: Callable[[], None]) -> BaseException | None:
        """Calls `settle` until it has got through, and returns what a signal raised meanwhile.

        The function works on its caller's memory, so that an interrupt must not overtake it.
        """
        interrupt: BaseException | None = None
        while True:
            try:
                settle()
            except BaseException as error:
                interrupt = error
            else:
                return interrupt


class SideThread:
    """Runs one job after the other, beside its callers. It does not keep the process alive."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[SideJob] = SimpleQueue()
        self._starts = threading.Lock()
        self._started = False

    def begin(self, job: SideJob) -> None:
        """Has the thread run a job. Where the system has no thread left, `SideJob.wait` does."""
        with self._starts:
            if not self._started:
                thread = threading.Thread(target=_serve, args=(self._jobs,), name="beside the forward", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return
                self._started = True
        self._jobs.put(job)

    def forget(self) -> None:
        """In a child process, which has no such thread: it starts again when it is needed."""
        self.__init__()  # type: ignore[misc]


def _serve(jobs: SimpleQueue[SideJob]) -> None:
    while True:
        job = jobs.get()
        job.run()
        # A waiting thread must not keep alive what it last worked on.
        del job


SIDE_THREAD = SideThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SIDE_THREAD.forget)
