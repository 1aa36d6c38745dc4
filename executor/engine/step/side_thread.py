"""A thread that works beside a step's forward, waiting for the life of the process once it has been needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue


class Job:
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
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._starts = threading.Lock()
        self._started = False

    def begin(self, job: Job) -> None:
        """Has the thread run a job. Where the system has no thread left, `Job.wait` does."""
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


def _serve(jobs: SimpleQueue[Job]) -> None:
    while True:
        job = jobs.get()
        job.run()
        # A waiting thread must not keep alive what it last worked on.
        del job


SIDE_THREAD = SideThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SIDE_THREAD.forget)
