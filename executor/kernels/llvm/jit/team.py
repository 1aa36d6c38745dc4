"""The threads that compiled kernels run in: kept, waiting, for the life of the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue


class Team:
    """Runs a function in several threads at once, while the caller waits.

    Kernels release the interpreter's lock, so the threads run side by side. One job runs at a time. The caller's own
    thread would not do: a signal could raise in it before it begins, and the others would wait for it for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[SimpleQueue[_Job]] = []

    def run(self, threads: int, job: Callable[[int], None]) -> None:
        """Calls `job` with the numbers from 0 to below `threads`, each in a thread of its own, and waits for all.

        Raises what a call of it raised.
        """
        if threads <= 1:
            job(0)
            return
        with self._lock:
            self._start(threads)
            shared = _Job(job)
            errors: list[BaseException] = []
            waiting = iter(self._jobs[:threads])
            # What a signal raises here must wait: the threads need each other, and work on the caller's memory.
            while len(shared.ends) < threads:
                try:
                    for jobs in waiting:
                        jobs.put(shared)
                    while len(shared.ends) < threads:
                        shared.ended.get()
                except BaseException as error:
                    errors.append(error)
        errors += [error for error in shared.ends if error is not None]
        if errors:
            raise errors[0]

    def forget(self) -> None:
        """In a child process, which has none of the threads: they start again when they are needed."""
        self.__init__()  # type: ignore[misc]

    def _start(self, count: int) -> None:
        for number in range(len(self._jobs), count):
            jobs: SimpleQueue[_Job] = SimpleQueue()
            threading.Thread(target=_serve, args=(number, jobs), name=f"kernels {number}", daemon=True).start()
            self._jobs.append(jobs)


class _Job:
    """A function that other threads run, and how it has ended in each: an exception or None."""

    def __init__(self, function: Callable[[int], None]) -> None:
        self.function = function
        self.ends: list[BaseException | None] = []
        # Something is put here after each end.
        self.ended: SimpleQueue[None] = SimpleQueue()


def _serve(number: int, jobs: SimpleQueue[_Job]) -> None:
    while True:
        job = jobs.get()
        try:
            job.function(number)
        except BaseException as error:  # whatever it is, the caller waits for it
            job.ends.append(error)
        else:
            job.ends.append(None)
        job.ended.put(None)
        # A waiting thread must not keep alive what it last worked on.
        del job


TEAM = Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TEAM.forget)
