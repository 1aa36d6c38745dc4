"""Results of many runs as they finish, and the text of one run as it is generated: for `for` and for `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qpdsl.api.background import submit
from qpdsl.api.results import Finished, Result, TextPiece
from qpdsl.arguments import ArgumentError

if TYPE_CHECKING:
    from qpdsl.api.program import Program

R = TypeVar("R")
Put = Callable[[Any], object]


class Map(Generic[R]):
    """The results of a program over rows of arguments, each as soon as it is there.

    Rows are taken from the input as there is room for them, in the caller's own thread.
    """

    def __init__(self, program: Program[..., R], rows: Iterable[Mapping[str, Any]], concurrency: int) -> None:
        if concurrency < 1:
            raise ArgumentError(f"`concurrency` takes a whole number of at least 1, not {concurrency}")
        self._program, self._rows, self._concurrency = program, rows, concurrency

    def __iter__(self) -> Iterator[Result[R]]:
        done: SimpleQueue[Future[Result[R]]] = SimpleQueue()
        runs = _Runs(self._work(), self._concurrency, done.put)
        try:
            while runs.filled():
                yield runs.taken(done.get())
        finally:
            runs.cancel()

    async def __aiter__(self) -> AsyncIterator[Result[R]]:
        done: asyncio.Queue[Future[Result[R]]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        runs: _Runs[R] = _Runs(
            self._work(), self._concurrency, lambda run: loop.call_soon_threadsafe(done.put_nowait, run)
        )
        try:
            while runs.filled():
                yield runs.taken(await done.get())
        finally:
            runs.cancel()

    def _work(self) -> Iterator[partial[Any]]:
        names = {param.name for param in self._program.params}
        for index, row in enumerate(self._rows):
            arguments = {name: value for name, value in row.items() if name in names}
            id_ = str(row["id"]) if "id" in row and "id" not in names else str(index)
            try:
                yield self._program.work((), arguments, id_, index)
            except ArgumentError as error:
                raise ArgumentError(f"row {id_}: {error}") from error


class _Runs(Generic[R]):
    """Runs in flight, never more than `limit`; each is put where it is waited for when it is done."""

    def __init__(self, work: Iterator[partial[Any]], limit: int, put: Callable[[Future[Result[R]]], object]) -> None:
        self._work, self._limit, self._put = work, limit, put
        self._flying: set[Future[Result[R]]] = set()

    def filled(self) -> bool:
        """Starts what there is room for; whether any run is to be waited for."""
        while len(self._flying) < self._limit:
            start = next(self._work, None)
            if start is None:
                break
            future: Future[Result[R]] = submit(start())
            self._flying.add(future)
            future.add_done_callback(self._put)
        return bool(self._flying)

    def taken(self, future: Future[Result[R]]) -> Result[R]:
        self._flying.remove(future)
        return future.result()

    def cancel(self) -> None:
        for future in self._flying:
            future.cancel()


class Stream(Generic[R]):
    """One run of a program: the pieces of text that it generates, each as soon as it is there, then its result."""

    def __init__(self, work: partial[Any]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[TextPiece | Finished[R]]:
        events: SimpleQueue[TextPiece | Future[Result[R]]] = SimpleQueue()
        future = self._started(events.put)
        try:
            while isinstance(event := events.get(), TextPiece):
                yield event
            yield Finished(event.result())
        finally:
            future.cancel()

    async def __aiter__(self) -> AsyncIterator[TextPiece | Finished[R]]:
        events: asyncio.Queue[TextPiece | Future[Result[R]]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        future = self._started(lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
        try:
            while isinstance(event := await events.get(), TextPiece):
                yield event
            yield Finished(event.result())
        finally:
            future.cancel()

    def _started(self, put: Put) -> Future[Result[R]]:
        def on_token(path: tuple[int, ...], stage: int, text: str) -> None:
            put(TextPiece(path, stage, text))

        future: Future[Result[R]] = submit(self._work(on_token=on_token))
        future.add_done_callback(put)
        return future
