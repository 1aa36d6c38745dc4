"""The results of many runs as they finish, and the text of one run as it is generated, to be iterated over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from qpdsl.api.background import not_in_a_loop, submit
from qpdsl.api.results import Finished, Result, TextPiece
from qpdsl.arguments import ArgumentError
from qpdsl.dataset.admission import Admission
from qpdsl.grammar.suggest import closest
from qpdsl.settings import check_whole

R = TypeVar("R")
Put = Callable[[Any], object]
InputRows = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
# One run of a program from its arguments, the row's id and index, and what says when it may start.
RowRun = Callable[[Mapping[str, Any], str, int, Admission | None], partial[Any]]


class Map(Generic[R]):
    """The results of a program over rows of arguments, each as soon as its run ends.

    A row is taken from the input when it can be started, in the caller's own thread or event loop. Without a
    `concurrency` the plan says how many rows run at once, and when each of them starts.
    """

    def __init__(
        self,
        run: RowRun,
        params: Collection[str],
        limits: tuple[int, int],
        rows: InputRows,
        concurrency: int | None,
        seeds: Iterable[int] | None = None,
    ) -> None:
        """`run` makes a row's run, `params` are the parameters by name, `limits` are those of `Program.admission`.

        `seeds` are those of the rows, in their order.
        """
        if concurrency is not None:
            check_whole("concurrency", concurrency, 1)
        if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable | AsyncIterable):
            raise ArgumentError(f"`map` takes many rows, each a mapping of arguments, not a {type(rows).__name__}")
        if seeds is not None and "seed" in params:
            raise ArgumentError("`seed` is a parameter of the program, so `seeds` cannot be the seeds of its rows")
        if isinstance(seeds, str) or not isinstance(seeds, Iterable | None):
            raise ArgumentError(f"`seeds` takes the whole numbers of the rows, not {seeds!r}")
        self._run, self._params, self._rows = run, frozenset(params), rows
        self._seeds = seeds
        self._concurrency, self._floor = limits if concurrency is None else (concurrency, 0)

    def __iter__(self) -> Iterator[Result[R]]:
        if not isinstance(self._rows, Iterable):
            raise TypeError("these rows come asynchronously: write `async for` over the results")
        not_in_a_loop("`async for` over the results")
        done: SimpleQueue[Future[Result[R]]] = SimpleQueue()
        seeds = None if self._seeds is None else iter(self._seeds)
        rows, admission = enumerate(self._rows), self._admission()
        running: set[Future[Result[R]]] = set()
        try:
            while True:
                for index, row in islice(rows, self._concurrency - len(running)):
                    running.add(self._started(index, row, admission, done.put, seeds))
                if not running:
                    return
                finished = done.get()
                running.remove(finished)
                yield finished.result()
        finally:
            _cancel(running)

    async def __aiter__(self) -> AsyncIterator[Result[R]]:
        # Waiting for the next row must not delay a result, so rows are taken in a task of their own.
        loop = asyncio.get_running_loop()
        done: asyncio.Queue[Future[Result[R]] | None] = asyncio.Queue()
        room, admission = asyncio.Semaphore(self._concurrency), self._admission()
        running: set[Future[Result[R]]] = set()

        def put(future: Future[Result[R]]) -> None:
            loop.call_soon_threadsafe(done.put_nowait, future)

        seeds = None if self._seeds is None else iter(self._seeds)

        async def feed() -> None:
            index = 0
            await room.acquire()
            async for row in _asynchronous(self._rows):
                running.add(self._started(index, row, admission, put, seeds))
                index += 1
                await room.acquire()

        feeding = asyncio.create_task(feed())
        feeding.add_done_callback(lambda _: done.put_nowait(None))
        try:
            while running or not feeding.done():
                finished = await done.get()
                if finished is None:
                    feeding.result()
                    continue
                running.remove(finished)
                yield finished.result()
                room.release()
            feeding.result()
        finally:
            feeding.cancel()
            _cancel(running)

    def _admission(self) -> Admission | None:
        return Admission(self._floor) if self._floor else None

    def _started(
        self, index: int, row: Mapping[str, Any], admission: Admission | None, put: Put, seeds: Iterator[int] | None
    ) -> Future[Result[R]]:
        """Starts the run of a row; `put` gets its future when it is done. Raises ArgumentError."""
        if not isinstance(row, Mapping):
            raise ArgumentError(f"row {index}: a row is a mapping of arguments, not a {type(row).__name__}")
        arguments = {name: value for name, value in row.items() if name in self._params}
        id_ = str(row["id"]) if "id" in row and "id" not in self._params else str(index)
        for field in row:
            near = None if field in (*self._params, "id", "seed") else closest(field, self._params - row.keys())
            if near is not None:
                raise ArgumentError(f"row {id_}: `{field}` is no parameter; did you mean `{near}`?")
        if seeds is not None:
            if "seed" in row:
                raise ArgumentError(f"row {id_}: two seeds, the row's own and that of `seeds`")
            arguments["seed"] = next(seeds, None)
            if arguments["seed"] is None:
                raise ArgumentError(f"row {id_}: `seeds` has ended")
        elif "seed" in row:
            arguments["seed"] = row["seed"]
        try:
            run = self._run(arguments, id_, index, admission)
        except ArgumentError as error:
            raise ArgumentError(f"row {id_}: {error}") from error
        future: Future[Result[R]] = submit(run())
        future.add_done_callback(put)
        return future


async def _asynchronous(rows: InputRows) -> AsyncIterator[Mapping[str, Any]]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


def _cancel(running: set[Future[Result[R]]]) -> None:
    for future in running:
        future.cancel()


class Stream(Generic[R]):
    """One run of a program: the pieces of its text as they are generated, then its result."""

    def __init__(self, run: partial[Any]) -> None:
        self._run = run

    def __iter__(self) -> Iterator[TextPiece | Finished[R]]:
        not_in_a_loop("`async for` over the pieces")
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

        future: Future[Result[R]] = submit(self._run(on_token=on_token))
        future.add_done_callback(put)
        return future
