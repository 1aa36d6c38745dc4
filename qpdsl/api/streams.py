"""The results of many runs as they finish, and the text of one run as it is generated, to be iterated over."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qpdsl.api.background import ProgramCall, call_soon, driven, submit
from qpdsl.api.notebook import RunsShown, not_in_a_loop
from qpdsl.api.results import Finished, Result, TextPiece
from qpdsl.arguments import ArgumentError
from qpdsl.grammar.suggest import closest, listed
from qpdsl.runs.runner import RowQueue, start_rows
from qpdsl.session.setting import Whole

if TYPE_CHECKING:
    from qpdsl.session.session import Session

R = TypeVar("R")
Put = Callable[[Any], object]
InputRow = Mapping[str, Any] | str
InputRows = Iterable[InputRow] | AsyncIterable[InputRow]
# One run of a program from its arguments, the row's id and its index.
RowCall = Callable[[Mapping[str, Any], str, int], ProgramCall[R]]


class Map(Generic[R]):
    """The results of a program over rows of arguments, each as soon as its run ends.

    A row is taken from the input when it can be started, in the caller's own thread or event loop. Without a
    `concurrency` the plan says how many rows run at once, and when each of them starts.
    """

    def __init__(
        self,
        call: RowCall[R],
        params: Collection[str],
        limits: tuple[int, int],
        rows: InputRows,
        concurrency: int | None,
        seeds: Iterable[int] | None,
        values: Mapping[str, Any],
        texts: Sequence[str],
    ) -> None:
        """`call` makes a row's run, `params` are the parameters by name, `limits` are those of `Program.admission`.

        `seeds` are those of the rows, in their order, `values` for parameters that a row does not set, and `texts` the
        parameters that need a text besides.
        """
        if concurrency is not None:
            Whole(1).check("concurrency", concurrency)
        if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable | AsyncIterable):
            raise ArgumentError(f"`map` takes many rows, each a mapping of arguments, not a {type(rows).__name__}")
        if seeds is not None and "seed" in params:
            raise ArgumentError("`seed` is a parameter of the program, so `seeds` cannot be the seeds of its rows")
        if isinstance(seeds, str) or not isinstance(seeds, Iterable | None):
            raise ArgumentError(f"`seeds` takes the whole numbers of the rows, not {seeds!r}")
        self._make, self._params, self._rows = call, frozenset(params), rows
        self._seeds, self._values, self._texts = seeds, values, texts
        self._concurrency, self._floor = limits if concurrency is None else (concurrency, 0)

    def __iter__(self) -> Iterator[Result[R]]:
        if not isinstance(self._rows, Iterable):
            raise TypeError("these rows come asynchronously: write `async for` over the results")
        not_in_a_loop("`async for` over the results")
        ended: SimpleQueue[Result[R] | BaseException] = SimpleQueue()
        seeds = None if self._seeds is None else iter(self._seeds)
        rows, started = enumerate(self._rows), _StartedRows[R](self._floor, ended.put)
        running = 0
        try:
            with self._shown().shown() as shown:
                while True:
                    for index, row in islice(rows, self._concurrency - running):
                        call = self._call(index, row, seeds)
                        shown.add(call)
                        started.put(call)
                        running += 1
                    if not running:
                        started.close()
                        return
                    result = shown.next_of(ended)
                    if isinstance(result, BaseException):
                        raise result
                    running -= 1
                    yield shown.seen(result)
        finally:
            started.cancel()

    async def __aiter__(self) -> AsyncIterator[Result[R]]:
        # Waiting for the next row must not delay a result, so rows are taken in a task of their own.
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[Result[R] | BaseException | None] = asyncio.Queue()
        room, running = asyncio.Semaphore(self._concurrency), 0
        started = _StartedRows[R](self._floor, lambda result: loop.call_soon_threadsafe(ended.put_nowait, result), loop)
        shown = self._shown()
        seeds = None if self._seeds is None else iter(self._seeds)

        async def feed() -> None:
            nonlocal running
            index = 0
            await room.acquire()
            async for row in _asynchronous(self._rows):
                call = self._call(index, row, seeds)
                shown.add(call)
                started.put(call)
                running += 1
                index += 1
                await room.acquire()

        feeding = asyncio.create_task(feed())
        feeding.add_done_callback(lambda _: ended.put_nowait(None))
        try:
            async with shown.beside():
                while running or not feeding.done():
                    result = await ended.get()
                    if result is None:
                        feeding.result()
                        continue
                    if isinstance(result, BaseException):
                        raise result
                    running -= 1
                    yield shown.seen(result)
                    room.release()
            feeding.result()
            await asyncio.to_thread(started.close)
        finally:
            feeding.cancel()
            started.cancel()

    def _shown(self) -> RunsShown:
        return RunsShown(len(self._rows) if isinstance(self._rows, Sized) else None, stays=True)

    def _call(self, index: int, row: InputRow, seeds: Iterator[int] | None) -> ProgramCall[R]:
        """The run of a row. Raises ArgumentError."""
        if isinstance(row, str) and len(self._texts) == 1:
            row = {self._texts[0]: row}
        if not isinstance(row, Mapping):
            form = f'; `{{"{self._texts[0]}": "…"}}` is one' if self._texts else ""
            raise ArgumentError(f"row {index}: a row is a mapping of arguments, not a {type(row).__name__}{form}")
        arguments = {name: value for name, value in {**self._values, **row}.items() if name in self._params}
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
            return self._make(arguments, id_, index)
        except ArgumentError as error:
            lacks = any(name not in arguments for name in self._texts)
            fields = f"; its fields are {listed(list(row), last='and')}" if lacks and row else ""
            raise ArgumentError(f"row {id_}: {error}{fields}") from None


class _StartedRows(Generic[R]):
    """Rows that run in the background, each session's as `start_rows` starts them.

    `ended` gets the result of each row, or what has ended the rows of its session. `caller`: see `submit`.
    """

    def __init__(self, floor: int, ended: Put, caller: asyncio.AbstractEventLoop | None = None) -> None:
        self._floor = floor
        self._ended = ended
        self._caller = caller
        self._queues: dict[Session, tuple[RowQueue[ProgramCall[R]], Future[None]]] = {}

    def put(self, call: ProgramCall[R]) -> None:
        """Has a row start once it may."""
        if call.session not in self._queues:
            queue: RowQueue[ProgramCall[R]] = RowQueue()
            rows = start_rows(call.session, queue, lambda _: (self._floor, None), self._run)
            future = submit(driven(call.session, rows), self._caller)
            future.add_done_callback(self._failed)
            self._queues[call.session] = queue, future
        call_soon(self._queues[call.session][0].put, call)

    def close(self) -> None:
        """Ends what all rows of which have ended, and waits for that."""
        for queue, future in self._queues.values():
            call_soon(queue.close)
            future.result()

    def cancel(self) -> None:
        for _, future in self._queues.values():
            future.cancel()

    async def _run(self, call: ProgramCall[R]) -> None:
        try:
            self._ended(await call.run())
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise RuntimeError("the run was cancelled from within") from error
            raise

    def _failed(self, future: Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._ended(error)


async def _asynchronous(rows: InputRows) -> AsyncIterator[InputRow]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


class Stream(Generic[R]):
    """One run of a program: the pieces of its text as they are generated, then its result."""

    def __init__(self, call: ProgramCall[R]) -> None:
        self._call = call

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
        future = self._started(lambda event: loop.call_soon_threadsafe(events.put_nowait, event), loop)
        try:
            while isinstance(event := await events.get(), TextPiece):
                yield event
            yield Finished(event.result())
        finally:
            future.cancel()

    def _started(self, put: Put, caller: asyncio.AbstractEventLoop | None = None) -> Future[Result[R]]:
        def on_token(path: tuple[int, ...], stage: int, text: str, thought: bool) -> None:
            put(TextPiece(path, stage, text, thought))

        future = submit(self._call.alone(on_token), caller)
        future.add_done_callback(put)
        return future
