"""The engine of this process: requests in, completions out, several models on one device, one step at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from traceback import clear_frames

import torch

from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.branch_reads import BranchReads
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.exit.exit_steps import ExitCurve, ExitSteps, ExitWeights
from qpdsl.executor.engine.largest_step import largest_requests, memory_of
from qpdsl.executor.engine.launched_step import LaunchedStep
from qpdsl.executor.engine.memory.budget import Footprint, ResidentMemory
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.served_models import EngineConfig as EngineConfig
from qpdsl.executor.engine.served_models import ServedModels
from qpdsl.executor.engine.step.backends import sum_in_float32
from qpdsl.executor.engine.step.routed_head import RoutedHead
from qpdsl.executor.engine.step_report import StepReport, report
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.engine_loop import take_turns
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Request, TreeRequest
from qpdsl.executor.requests.ticket import Ticket

# Steps that are launched at once, of one model or of two: a device that has two to do does not run dry.
_MAX_IN_FLIGHT = 2


class PagedEngine:
    """An `Engine` that serves requests to named models out of one KV budget.

    It goes on by `step()`, or by `drive()` inside an asyncio loop. `on_step` is called with a report after every step.
    `kv_bytes` is the memory for the KV of all models together, in bytes or as text such as "4GiB" or "50%" of the
    device's; by default as much as is safe (see `budget.kv_bytes`). `clock` is the one of the owners' deadlines.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        on_step: Callable[[StepReport], None] | None = None,
        kv_bytes: int | str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config or EngineConfig()
        sum_in_float32(whole=self._config.deterministic)
        self.models = ServedModels(self._config, kv_bytes, clock, self._try_largest_steps)
        self._clock = clock
        self._resident: ResidentMemory | None = None
        # Bytes of weights by model, counted once.
        self._weights: dict[str, int] = {}
        self._stepping = False
        # Steps in the order in which they were launched, and those that were collected and not told of.
        self._in_flight: deque[tuple[ModelRunner, LaunchedStep]] = deque()
        self._collected: deque[tuple[ModelRunner, LaunchedStep]] = deque()
        # When the last step was collected, on the clock of `time.perf_counter`.
        self._collected_at = 0.0
        self._cancelled: list[tuple[Scheduler, Ticket]] = []
        self._on_step = on_step
        self._arrived: asyncio.Event | None = None

    def add(self, name: str, model: PagedModel, share: float = 1.0) -> None:
        """Makes a model ready for requests under `name`; it takes at most `share` of the memory.

        While the engine is idle the memory is cut anew to suit all models, and what was cached is forgotten; a model
        that comes while others work takes the slabs as they are. Raises EngineError where the budget does not hold a
        page of it.
        """
        self._drain()
        self.models.add(name, model, idle=not self.has_work, share=share)

    @contextmanager
    def room_for_weights(self) -> Iterator[None]:
        """Gives the memory for keys and values back in the block, where the engine is idle: it may be all there is.

        What was cached is forgotten then. No model can be asked before one is added, or the block ends.
        """
        self._drain()
        if self.has_work:
            yield
            return
        self.models.release()
        try:
            yield
        except BaseException as error:
            # They hold the weights of the model that could not be loaded.
            clear_frames(error.__traceback__)
            raise
        finally:
            self.models.take_back()

    def warm_up(self, tell: Callable[[str, str, int, int], None]) -> None:
        """Has each model's commonest steps ready before any is asked for; without effect on a CPU.

        `tell` is called with the model, what takes long, and how much of it of how much is done.
        """
        with torch.inference_mode():
            for runner in self.models.runners.values():
                with working_on(runner.model.device):
                    runner.backend.warm_up(self._config.max_sequences, partial(tell, runner.name))

    def close(self) -> None:
        """Gives all memory back at once; no request may follow, and those under way are never answered."""
        self._in_flight.clear()
        self._collected.clear()
        self.models.release()

    def add_head(self, name: str, head: EagleHead) -> None:
        """Makes an EAGLE head ready to draft, on the device of the models that it is for."""
        self.models.learned.heads[name] = head.eval()

    def add_exit_head(self, name: str, head: ExitWeights, curve: ExitCurve | None = None) -> None:
        """Makes an exit head ready for requests that leave a model early by it. Of a name, each layer has its own.

        `curve`: what was measured of it.
        """
        self.models.learned.exit_heads.add(name, head, curve)

    def _try_largest_steps(self, models: Iterable[PagedModel]) -> None:
        """Runs each model's `largest_requests` once, so that the memory that they take can be measured."""
        config = replace(self._config, graphs=False)
        for model in models:
            steps = largest_requests(model, config.max_sequences, config.token_budget)
            size = max(memory_of(model, step) for step in steps)
            with closing(PagedEngine(config, kv_bytes=size)) as trial:
                try:
                    trial.add("trial", model)
                    for step in steps:
                        for request in step:
                            trial.submit("trial", request)
                        while trial.has_work:
                            trial.step()
                except torch.OutOfMemoryError as error:
                    raise EngineError(
                        f"the device has no memory for a step of {config.token_budget:,} tokens and "
                        f"{config.max_sequences} sequences beside the weights; allow fewer of them, or take a smaller "
                        "model"
                    ) from error

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def kv_bytes(self) -> int:
        """The memory for the KV of all models together; 0 before the first is added."""
        return self.models.kv_bytes

    def runner(self, model: str) -> ModelRunner:
        """What runs the steps of a model."""
        return self.models.runners[model]

    def capabilities(self, model: str) -> Capabilities:
        """See `Engine`."""
        return self.runner(model).model.capabilities

    def routed(self, model: str) -> RoutedHead | None:
        """What routes the steps of a model, with the routers that it has; None where nothing can."""
        return self.runner(model).backend.readout.routed

    def exits(self, model: str) -> ExitSteps:
        """What carries out the early exits of a model, with the routers that it has for them."""
        return self.runner(model).exits

    def restore_exits(self, model: str, states: Mapping[str, object]) -> None:
        """Has the routers of a model's early exits begin with these states, by what the exits say.

        A router that has decided something goes on by what it knew then.
        """
        self.runner(model).exits.learned.states = states

    def busy(self, model: str) -> int:
        """The sequences that a model has to work at; a prompt that is not forked yet counts for all its samples."""
        scheduler = self.runner(model).scheduler
        return sum(sequence.copies for queue in (scheduler.running, scheduler.waiting) for sequence in queue)

    @property
    def has_work(self) -> bool:
        # What was collected is still to be told where a callback raised.
        untold = self._in_flight or self._collected
        return bool(untold) or any(runner.scheduler.has_work for runner in self.models.runners.values())

    def submit(self, model: str, request: Request) -> Ticket:
        """Queues a request. Raises EngineError where the model, its context, vocabulary or memory cannot serve it."""
        runner = self.runner(model)
        paged, scheduler = runner.model, runner.scheduler
        length, largest = request.length, max(request.tokens)
        # A sample needs a position for the first token that is drawn.
        most = paged.max_positions - (request.samples > 0)
        if length > most:
            raise EngineError(f"the context has {length} tokens, {model} takes {most}")
        if largest >= paged.vocabulary:
            raise EngineError(f"token {largest} is none of the {paged.vocabulary} that {model} knows")
        if (inability := paged.capabilities.refusal(request.features)) is not None:
            raise EngineError(f"{model} {inability}")
        if (reason := scheduler.too_large(len(request.tokens))) is not None:
            raise EngineError(reason)
        if request.generation is not None:
            request = runner.settled(request.generation)
        cancel = partial(self._cancel, scheduler)

        def queue(ticket: Ticket) -> None:
            scheduler.add(Sequence.of(ticket, ticket.request, paged.max_positions - length))

        if isinstance(request, TreeRequest) and paged.states is not None:
            ticket = BranchReads(request, cancel, scheduler.promote).submit(queue)
        else:
            ticket = Ticket(request, cancel, scheduler.promote)
            queue(ticket)
        if self._arrived is not None:
            self._arrived.set()
        return ticket

    @torch.inference_mode()
    def step(self) -> None:
        """Ends one step, of a model that has work and gets memory for some of it.

        On a CPU it launches a step, collects it, and tells who waits for it. On a device the next steps are launched
        before that: one of another model, whose turn it is, or one that the first feeds, before the first is collected;
        else the next of any model before anybody is told. So one is in flight when this returns, where there is work.
        """
        if not self.has_work:
            raise RuntimeError("the engine has no work")
        try:
            self._launch(feeds=not self._cancelled)
            if self._in_flight:
                overlaps = self._overlaps(self._in_flight[0][0])
                self._collect()
                if overlaps:
                    self._launch()
        finally:
            self._tell()

    async def drive(self) -> None:
        """Steps for as long as the task lives, letting the awaiting coroutines run in between."""
        # An event belongs to one loop, and an engine may be driven in several.
        self._arrived = asyncio.Event()
        while True:
            if self.has_work:
                self.step()
                await take_turns()
            else:
                self._arrived.clear()
                await self._arrived.wait()
                # Others that come with it begin with it.
                await take_turns()

    def check_integrity(self) -> None:
        """AssertionError unless the page accounts of every model balance."""
        self.models.check_integrity()

    def _overlaps(self, runner: ModelRunner) -> bool:
        return self._config.overlap and runner.asynchronous

    def _launch(self, *, feeds: bool = False) -> None:
        """Launches what is next, until so much is in flight as may be, or what is next depends on that.

        Steps in flight feed others where it `feeds`: not before who waits for a step was told, and could ask for more.
        """
        while not self._in_flight or (len(self._in_flight) < _MAX_IN_FLIGHT and self._overlaps(self._in_flight[-1][0])):
            since, had = time.perf_counter(), time.process_time()
            scheduled = self._schedule(feeds)
            if scheduled is None:
                return
            runner, chunks, feeder = scheduled
            runner.scheduler.work.step_starts(self._clock())
            self._stepping = True
            try:
                step = runner.launch(chunks, feeder)
            finally:
                self._stepping = False
                self._retire_cancelled()
            step.since, step.had = since, had
            runner.scheduler.in_flight = True
            self._in_flight.append((runner, step))

    def _collect(self) -> None:
        """Waits for the step that was launched first, and gives its tokens to its sequences."""
        runner, step = self._in_flight[0]
        runner.wait(step)
        self._in_flight.popleft()
        if not step.chunks:
            return
        following = self._last(runner)
        runner.scheduler.in_flight = following is not None
        gone = {ticket for scheduler, ticket in self._cancelled if scheduler is runner.scheduler}
        self._retire_cancelled()
        self._collected.append((runner, step))
        self._stepping = True
        try:
            runner.collect(step, gone, self._collected_at)
        finally:
            if following is not None and following.feeder is step:
                runner.settle(following)
                runner.scheduler.in_flight = bool(following.chunks)
            self._stepping = False
            self._retire_cancelled()
        # The device works at one step after the other: until the last one was done, this one had to wait.
        now = time.perf_counter()
        step.seconds, self._collected_at = now - max(step.since, self._collected_at), now
        # While a device works, no processor needs to.
        had = step.seconds if runner.asynchronous else time.process_time() - step.had
        step.worked_seconds = min(step.seconds, had)

    def _tell(self) -> None:
        """Tells the requests that ended with collected steps, and whoever follows the steps."""
        while self._collected:
            runner, step = self._collected[0]
            scheduler = runner.scheduler
            self._stepping = True
            try:
                while step.ended:
                    step.ended.pop(0).tell()
            finally:
                self._stepping = False
                self._retire_cancelled()
            self._collected.popleft()
            if not (scheduler.has_work or scheduler.in_flight):
                scheduler.work.idle()
            _charge(step.chunks, step.seconds)
            self._report(runner, step)

    @torch.inference_mode()
    def _drain(self) -> None:
        """Collects what is in flight, and launches nothing."""
        while self._in_flight:
            self._collect()
        self._tell()

    def _last(self, runner: ModelRunner) -> LaunchedStep | None:
        """The last step of a model in flight from which anybody gets anything."""
        return next((step for other, step in reversed(self._in_flight) if other is runner and step.chunks), None)

    def _schedule(self, feeds: bool) -> tuple[ModelRunner, list[Chunk], LaunchedStep | None] | None:
        """A model, the chunks of its next step, and the step in flight that feeds it.

        None where requests failed instead, or where what is next depends on what is in flight: on its tokens, or on
        the memory that it holds. A model that gets no memory now lets another step (see `Scheduler.schedule`).
        """
        working = [runner for runner in self.models.runners.values() if runner.scheduler.has_work]
        refusals = sum(runner.scheduler.refusals for runner in working)
        for runner in sorted(working, key=ModelRunner.order):
            feeder = self._last(runner) if runner.scheduler.in_flight else None
            chunks = runner.schedule() if feeder is None else runner.fed_by(feeder) if feeds else []
            if chunks:
                for other in working:
                    other.passed += 1
                runner.chosen()
                return runner, chunks, feeder
            if feeder is not None or runner.scheduler.blocked:
                return None
        if working and not self._in_flight and sum(runner.scheduler.refusals for runner in working) == refusals:
            raise RuntimeError("no sequence got memory, and none was refused")
        return None

    def _cancel(self, scheduler: Scheduler, ticket: Ticket) -> None:
        """Frees the pages of a request, but not under the step that reads them."""
        if self._stepping or scheduler.in_flight:
            self._cancelled.append((scheduler, ticket))
        else:
            scheduler.cancel(ticket)

    def _retire_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for scheduler, ticket in cancelled:
            self._cancel(scheduler, ticket)

    def _report(self, runner: ModelRunner, step: LaunchedStep) -> None:
        if self._on_step is None:
            return
        if step.head is not None:
            step.spent.head += step.head.seconds()
        chunks = step.chunks
        decodes = sum(chunk.count == 1 and chunk.sequence.drawn > 1 for chunk in chunks)
        prefill = sum(chunk.count for chunk in chunks) - decodes
        counts = (len(chunks), prefill, decodes, step.seconds, step.worked_seconds)
        routed = runner.backend.readout.routed
        footprint = self._footprint(runner, prefill + decodes)
        self._on_step(report(runner.name, runner.scheduler, *counts, step.spent, step.waits, routed, footprint))

    def _footprint(self, runner: ModelRunner, rows: int) -> Footprint:
        """What the step of so many rows, and everything else, holds in memory."""
        if self._resident is None:
            self._resident = ResidentMemory(runner.model.device)
        if runner.name not in self._weights:
            self._weights[runner.name] = int(runner.model.weight_bytes)
        activations = rows * runner.model.row_bytes
        return Footprint(self._weights[runner.name], activations, self._resident.bytes())


def _charge(chunks: list[Chunk], seconds: float) -> None:
    """Divides the seconds of a step over the requests in it, by the tokens that it computed for them."""
    rows = [chunk.count if chunk.proposal is None else chunk.rows for chunk in chunks]
    each = seconds / sum(rows)
    for chunk, count in zip(chunks, rows, strict=True):
        sequence = chunk.sequence
        # Its first round draws after its prompt.
        if sequence.rounds > 1:
            sequence.ticket.charged.drawn += each * count
        else:
            sequence.ticket.charged.prompt += each * count
