"""Results of many runs as they finish, and the text of one run as it is generated: for `for` and for `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from qpdsl.api.background import submit
from qpdsl.api.results import Finished, Result, TextPiece
from qpdsl.arguments import ArgumentError, check_whole
from qpdsl.dataset.admission import Gate

R = TypeVar("R")
Put = Callable[[Any], object]
Rows = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
# One run of a program from its arguments, the row's id and index, and what lets it start.
Work = Callable[[Mapping[str, Any], str, int, Gate | None], partial[Any]]


class Map(Generic[R]):
    """The results of a program over rows of arguments, each as soon as it is there.

    Rows are taken from the input as there is room for them, in the caller's own thread or event loop. Without a
    `concurrency` the plan says how many there are at once, and when each of them starts.
    """

    def __init__(
        self, work: Work, params: Collection[str], admission: tuple[int, int], rows: Rows, concurrency: int | None
    ) -> None:
        """`work` starts a row, `params` are the parameters by name; `admission` as in `Program.admission`."""
        if concurrency is not None:
            check_whole("concurrency", concurrency, 1)
        if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable | AsyncIterable):
            raise ArgumentError(f"`map` takes many rows, each a mapping of arguments, not a {type(rows).__name__}")
        self._work, self._params, self._rows = work, frozenset(params), rows
        most, floor = admission if concurrency is None else (concurrency, 0)
        self._concurrency, self._floor = most, floor

    def __iter__(self) -> Iterator[Result[R]]:
        if not isinstance(self._rows, Iterable):
            raise TypeError("these rows come asynchronously: write `async for` over the results")
        done: SimpleQueue[Future[Result[R]]] = SimpleQueue()
        rows, gate = enumerate(self._rows), self._gate()
        flying: set[Future[Result[R]]] = set()
        try:
            while True:
                for index, row in islice(rows, self._concurrency - len(flying)):
                    flying.add(self._started(index, row, gate, done.put))
                if not flying:
                    return
                finished = done.get()
                flying.remove(finished)
                yield finished.result()
        finally:
            _cancel(flying)

    async def __aiter__(self) -> AsyncIterator[Result[R]]:
        # A wait for the next row must not keep a result back, so rows are taken in a task of their own.
        loop = asyncio.get_running_loop()
        done: asyncio.Queue[Future[Result[R]] | None] = asyncio.Queue()
        room, gate = asyncio.Semaphore(self._concurrency), self._gate()
        flying: set[Future[Result[R]]] = set()

        def put(run: Future[Result[R]]) -> None:
            loop.call_soon_threadsafe(done.put_nowait, run)

        async def feed() -> None:
            index = 0
            await room.acquire()
            async for row in _asynchronous(self._rows):
                flying.add(self._started(index, row, gate, put))
                index += 1
                await room.acquire()

        feeding = asyncio.create_task(feed())
        feeding.add_done_callback(lambda _: done.put_nowait(None))
        try:
            while flying or not feeding.done():
                finished = await done.get()
                if finished is None:
                    feeding.result()
                    continue
                flying.remove(finished)
                yield finished.result()
                room.release()
            feeding.result()
        finally:
            feeding.cancel()
            _cancel(flying)

    def _gate(self) -> Gate | None:
        return Gate(self._floor) if self._floor else None

    def _started(self, index: int, row: Mapping[str, Any], gate: Gate | None, put: Put) -> Future[Result[R]]:
        """The run of a row, which is put where it is waited for when it is done. Raises ArgumentError."""
        if not isinstance(row, Mapping):
            raise ArgumentError(f"row {index}: a row is a mapping of arguments, not a {type(row).__name__}")
        arguments = {name: value for name, value in row.items() if name in self._params}
        id_ = str(row["id"]) if "id" in row and "id" not in self._params else str(index)
        try:
            work = self._work(arguments, id_, index, gate)
        except ArgumentError as error:
            raise ArgumentError(f"row {id_}: {error}") from error
        future: Future[Result[R]] = submit(work())
        future.add_done_callback(put)
        return future


async def _asynchronous(rows: Rows) -> AsyncIterator[Mapping[str, Any]]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


def _cancel(flying: set[Future[Result[R]]]) -> None:
    for future in flying:
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
