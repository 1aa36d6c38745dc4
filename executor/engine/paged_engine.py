"""The engine of this process: requests in, completions out, several models on one device, one step at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from qpdsl.executor.engine.draft.draft_model import ModelDrafter
from qpdsl.executor.engine.draft.drafter import Drafter
from qpdsl.executor.engine.draft.drafters import Drafters
from qpdsl.executor.engine.draft.eagle import EagleDrafter
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.draft.ngram import NGramDrafter
from qpdsl.executor.engine.draft.self_draft import SelfDrafter
from qpdsl.executor.engine.exit.exit_router import ExitRouter
from qpdsl.executor.engine.exit.exit_states import ExitCurve, ExitHeads, HeadWeights
from qpdsl.executor.engine.exit.exit_steps import ExitSteps
from qpdsl.executor.engine.largest_step import largest_requests
from qpdsl.executor.engine.launched_step import LaunchedStep
from qpdsl.executor.engine.memory import budget
from qpdsl.executor.engine.memory.arena import Arena, slab_bytes
from qpdsl.executor.engine.memory.footprint import Footprint, ResidentMemory
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.kv_cache_manager import KVCacheManager
from qpdsl.executor.engine.memory.pool import PagePool
from qpdsl.executor.engine.memory.reclaimer import Reclaimer
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.scheduler import Scheduler, SchedulerGroup
from qpdsl.executor.engine.step.backends import NativeBackend, backend_of, fixed_rows
from qpdsl.executor.engine.step.graphs import MOST_BYTES
from qpdsl.executor.engine.step.mask_filler import MaskFiller
from qpdsl.executor.engine.step.routed_head import HeadRouter, RoutedHead
from qpdsl.executor.engine.step_report import StepReport, report
from qpdsl.executor.requests.drafting import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Request
from qpdsl.executor.requests.routing import Routing
from qpdsl.executor.requests.ticket import Ticket

# Steps that are launched at once, each of another model: a device that has two to do does not run dry.
_MOST_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`max_sequences` bounds a model's decode batch; `token_budget` the tokens of one step.

    On a GPU: `deterministic` gives a sample the same bits in any batch, in steps of a fixed size; `compiled` has
    torch.compile make the kernels of transformers' modules when they first run, where a model keeps these and steps are
    not deterministic; `graphs` captures steps as CUDA graphs. On a CPU in float32 a sample has the same bits in any
    batch anyway, where the model's layers run without transformers' modules. With `overlap`, the host's part of a step
    runs while the device computes others; it changes no token. With `record_routes`, a step whose head is routed is
    computed by every arm, to know what each takes.
    """

    max_sequences: int = 128
    token_budget: int = 2048
    deterministic: bool = False
    compiled: bool = False
    graphs: bool = True
    overlap: bool = True
    record_routes: bool = False


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
        if kv_bytes is not None:
            budget.parse(kv_bytes)
        self._requested_bytes = kv_bytes
        self._kv_bytes = 0
        self._arena: Arena | None = None
        self._runners: dict[str, ModelRunner] = {}
        self._clock = clock
        self._group = SchedulerGroup(clock)
        self._reclaimer = Reclaimer()
        self._model_drafters: list[tuple[str, ModelDrafter]] = []
        self._heads: dict[str, EagleHead] = {}
        self._exit_heads = ExitHeads()
        self._routers: dict[str, dict[Routing, HeadRouter]] = {}
        self._exit_routers: dict[str, dict[EarlyExit, ExitRouter]] = {}
        self._exit_states: dict[str, Mapping[str, object]] = {}
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

    def add(self, name: str, model: PagedModel) -> None:
        """Makes a model ready for requests under `name`.

        While the engine is idle the memory is cut anew to suit all models, and what was cached is forgotten; a model
        that comes while others work takes the slabs as they are. Raises EngineError where the budget does not hold a
        page of it.
        """
        if self._config.deterministic and model.kernels and model.mixes_rows:
            raise EngineError(
                f"{name} is a mixture of experts, whose bits depend on the batch: it is not deterministic"
            )
        self._drain()
        models = {**{runner.name: runner.model for runner in self._runners.values()}, name: model}
        if self._arena is None or not self.has_work:
            try:
                self._allocate(models)
            except EngineError:
                self._allocate({other: models[other] for other in models if other != name})
                raise
        else:
            self._group.free_slab(self._reclaimer)
            self._runners[name] = self._runner(name, model, self._arena)

    def add_head(self, name: str, head: EagleHead) -> None:
        """Makes an EAGLE head ready to draft, on the device of the models that it is for."""
        self._heads[name] = head.eval()

    def add_exit_head(self, name: str, head: HeadWeights, curve: ExitCurve | None = None) -> None:
        """Makes an exit head ready for requests that leave a model early by it. Of a name, each layer has its own.

        `curve`: what was measured of it.
        """
        self._exit_heads.add(name, head, curve)

    def _allocate(self, models: Mapping[str, PagedModel]) -> None:
        """Makes the arena anew for these models. The old one is freed first: a budget may be all that is free."""
        self._release()
        if not models:
            return
        device = next(iter(models.values())).device
        graphs = MOST_BYTES * sum(model.kernels for model in models.values()) if self._config.graphs else 0
        self._kv_bytes = budget.kv_bytes(
            self._requested_bytes, device, lambda: self._largest_step(models.values()), graphs
        )
        size = slab_bytes([model.layout for model in models.values()], self._kv_bytes)
        self._arena = Arena(self._kv_bytes, size, device)
        for name, model in models.items():
            self._runners[name] = self._runner(name, model, self._arena)

    def _release(self) -> None:
        """Gives the memory of all models back, whoever still holds a ticket and so a scheduler and its pages."""
        for runner in self._runners.values():
            runner.backend.close()
        if self._arena is not None:
            self._arena.close()
        self._arena, self._runners = None, {}
        self._group, self._reclaimer = SchedulerGroup(self._clock), Reclaimer()
        self._model_drafters = []

    def _runner(self, name: str, model: PagedModel, arena: Arena) -> ModelRunner:
        layouts = [*(runner.model.layout for runner in self._runners.values()), model.layout]
        # Each of the others keeps the slab of its scratch page; no sequence runs with less than a page beside scratch.
        own = arena.slabs - len(layouts) + 1
        if any(own * arena.fewest_pages(layout) < 2 for layout in layouts):
            needs = (len(layouts) + 1) * arena.slab_bytes
            raise EngineError(
                f"the KV budget of {self._kv_bytes:,} bytes is too small for {name}: its pages take "
                f"{model.layout.page_bytes:,} bytes, and {needs:,} are the least that could do"
            )
        pool = PagePool(arena, name, model.layout)
        cache = KVCache(arena.buffer, model.layout, pool.scratch)
        memory = KVCacheManager(pool, cache, 2.0 * model.parameters, self._reclaimer)
        config = self._config
        rows = fixed_rows(config.max_sequences) if config.deterministic and model.kernels else None
        scheduler = Scheduler(memory, config.max_sequences, rows or config.token_budget, self._group)
        # Layers of a step with an early exit run uncompiled, so the batch would decide whether compiled ones do.
        if config.compiled and rows is None:
            model.compile()
        backend = backend_of(model, cache, rows, config.graphs)
        drafters = Drafters(partial(self._drafter, name), model.max_positions)
        scheduler.on_leave = drafters.forget
        if backend.readout.routed is not None:
            backend.readout.routed.record = int(config.record_routes)
            # What was learned outlives a memory that is cut anew.
            backend.readout.routed.routers = self._routers.setdefault(name, {})
        exits = ExitSteps(model, backend, self._exit_heads, scheduler.token_budget, memory.residuals)
        self._group.borrowers.append(memory.residuals.give_back)
        exits.routers = self._exit_routers.setdefault(name, {})
        exits.states = self._exit_states.get(name, {})
        return ModelRunner(name, model, backend, scheduler, MaskFiller(model.vocabulary), drafters, exits)

    def _drafter(self, name: str, drafting: Drafting) -> Drafter:
        """What drafts for a model. Raises EngineError where nothing can."""
        if drafting.method == "ngram":
            return NGramDrafter(drafting)
        if drafting.method == "early_exit":
            runner = self._runners[name]
            if not isinstance(runner.backend, NativeBackend) or not runner.model.runs_in_part:
                raise EngineError(f"{name} cannot draft with its first layers: its layers are not compiled ones")
            leave = EarlyExit(0.0, head=drafting.model)
            leave = replace(leave, layer=self._exit_heads.layer(name, runner.model, leave))
            hidden_of = None if leave.head is None else partial(self._exit_heads.hidden, runner.model, leave)
            assert leave.layer is not None
            memory = runner.scheduler.memory
            return SelfDrafter(drafting, runner.model, runner.backend, memory, leave.layer, hidden_of)
        assert drafting.model is not None
        if drafting.method == "eagle":
            return self._eagle_drafter(name, drafting.model, drafting)
        return self._model_drafter(name, drafting.model, drafting)

    def _eagle_drafter(self, name: str, other: str, drafting: Drafting) -> EagleDrafter:
        model, head = self._runners[name].model, self._heads.get(other)
        if head is None:
            raise EngineError(f"{other} is to draft for {name}, and there is no such EAGLE head")
        assert isinstance(model.head, LogitHead)
        if (width := head.config.hidden_size) != (own := model.head.in_features):
            raise EngineError(f"{other} is no EAGLE head for {name}: its hidden states are {width} wide, not {own}")
        if head.embed_tokens is not None and head.embed_tokens.num_embeddings < model.vocabulary:
            raise EngineError(f"{other} is no EAGLE head for {name}: it does not know all of its tokens")
        return EagleDrafter(drafting, head, model, self._runners[name].backend.readout)

    def _model_drafter(self, name: str, other: str, drafting: Drafting) -> ModelDrafter:
        runner = self._runners.get(other)
        if runner is None:
            raise EngineError(f"{other} is to draft for {name}, and there is no such model")
        width, own = runner.model.head.width, self._runners[name].model.head.width
        if (inability := runner.model.capabilities.refusal({"sampling"})) is not None:
            raise EngineError(f"{other} cannot draft for {name}: it {inability}")
        if width != own:
            reason = f"its vocabulary is another, of {width:,} ids and not {own:,}"
            raise EngineError(f"{other} cannot draft for {name}: {reason}")
        drafter = ModelDrafter(
            drafting, runner.model, runner.backend, runner.scheduler.memory, runner.scheduler.token_budget
        )
        self._group.borrowers.append(drafter.give_back)
        self._model_drafters.append((other, drafter))
        return drafter

    def _largest_step(self, models: Iterable[PagedModel]) -> None:
        """Runs each model's `largest_requests` once, so that the memory that they take can be measured."""
        config = replace(self._config, graphs=False)
        for model in models:
            steps = largest_requests(model, config.max_sequences, config.token_budget)
            size = model.layout.page_size
            pages = max(sum(len(request.tokens) // size + 2 for request in step) for step in steps) + 1
            trial = PagedEngine(config, kv_bytes=pages * model.layout.page_bytes)
            try:
                trial.add("trial", model)
                for step in steps:
                    for request in step:
                        trial.submit("trial", request)
                    while trial.has_work:
                        trial.step()
            except torch.OutOfMemoryError as error:
                raise EngineError(
                    f"the device has no memory for a step of {config.token_budget:,} tokens and {config.max_sequences} "
                    "sequences beside the weights; allow fewer of them, or take a smaller model"
                ) from error
            finally:
                trial._release()

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def kv_bytes(self) -> int:
        """The memory for the KV of all models together; 0 before the first is added."""
        return self._kv_bytes

    def capabilities(self, model: str) -> Capabilities:
        """See `Engine`."""
        return self._runners[model].model.capabilities

    def routed(self, model: str) -> RoutedHead | None:
        """What routes the steps of a model, with the routers that it has; None where nothing can."""
        return self._runners[model].backend.readout.routed

    def exits(self, model: str) -> ExitSteps:
        """What carries out the early exits of a model, with the routers that it has for them."""
        return self._runners[model].exits

    def restore_exits(self, model: str, states: Mapping[str, object]) -> None:
        """Has the routers of a model's early exits begin with these states, by what the exits say.

        A router that has decided something goes on by what it knew then.
        """
        self._exit_states[model] = self._runners[model].exits.states = states

    def busy(self, model: str) -> int:
        """The sequences that a model has to work at; a prompt that is not forked yet counts for all its samples."""
        scheduler = self._runners[model].scheduler
        return sum(sequence.copies for queue in (scheduler.running, scheduler.waiting) for sequence in queue)

    @property
    def has_work(self) -> bool:
        # What was collected is still to be told where a callback raised.
        untold = self._in_flight or self._collected
        return bool(untold) or any(runner.scheduler.has_work for runner in self._runners.values())

    def submit(self, model: str, request: Request) -> Ticket:
        """Queues a request. Raises EngineError where the model, its context, vocabulary or memory cannot serve it."""
        paged, scheduler = self._runners[model].model, self._runners[model].scheduler
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
        if isinstance(request, GenerateRequest):
            request = self._exit_heads.settled(model, paged, request)
            if request.draft is not None:
                self._runners[model].drafters.prepare(request.draft)
        ticket = Ticket(request, partial(self._cancel, scheduler), scheduler.promote)
        scheduler.add(Sequence.of(ticket, request, paged.max_positions - length))
        if self._arrived is not None:
            self._arrived.set()
        return ticket

    @torch.inference_mode()
    def step(self) -> None:
        """Ends one step, of a model that has work and gets memory for some of it.

        On a CPU it launches a step, collects it, and tells who waits for it. On a device the next steps are launched
        before that: one of another model, whose turn it is, before the first is collected; and the next of any model
        before anybody is told. So one is in flight when this returns, where there is work.
        """
        if not self.has_work:
            raise RuntimeError("the engine has no work")
        try:
            self._launch()
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
                # The first turn of the loop wakes coroutines whose tickets resolved, the second lets them submit.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def check_integrity(self) -> None:
        """AssertionError unless the page accounts of every model balance."""
        for runner in self._runners.values():
            scheduler = runner.scheduler
            drafters = [drafter for name, drafter in self._model_drafters if name == runner.name]
            mirrors = [mirror for drafter in drafters for mirror in drafter.mirrors]
            scheduler.memory.check_integrity([*scheduler.running, *scheduler.waiting, *mirrors])
        if self._arena is not None:
            self._arena.check_integrity()

    def _overlaps(self, runner: ModelRunner) -> bool:
        return self._config.overlap and runner.asynchronous

    def _launch(self) -> None:
        """Launches what is next, until so much is in flight as may be, or what is next depends on that."""
        while not self._in_flight or (
            len(self._in_flight) < _MOST_IN_FLIGHT and self._overlaps(self._in_flight[-1][0])
        ):
            since = time.perf_counter()
            scheduled = self._schedule()
            if scheduled is None:
                return
            runner, chunks = scheduled
            runner.scheduler.work.step_starts(self._clock())
            self._stepping = True
            try:
                step = runner.launch(chunks)
            finally:
                self._stepping = False
                self._retire_cancelled()
            step.since = since
            runner.scheduler.in_flight = True
            self._in_flight.append((runner, step))

    def _collect(self) -> None:
        """Waits for the step that was launched first, and gives its tokens to its sequences."""
        runner, step = self._in_flight[0]
        runner.wait(step)
        self._in_flight.popleft()
        runner.scheduler.in_flight = False
        gone = {ticket for scheduler, ticket in self._cancelled if scheduler is runner.scheduler}
        self._retire_cancelled()
        self._collected.append((runner, step))
        self._stepping = True
        try:
            runner.collect(step, gone, self._collected_at)
        finally:
            self._stepping = False
            self._retire_cancelled()
        # The device works at one step after the other: until the last one was done, this one had to wait.
        now = time.perf_counter()
        step.seconds, self._collected_at = now - max(step.since, self._collected_at), now

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

    def _schedule(self) -> tuple[ModelRunner, list[Chunk]] | None:
        """A model and the chunks of its next step.

        None where requests failed instead, or where what is next depends on what is in flight: on its tokens, or on
        the memory that it holds. A model that gets no memory now lets another step (see `Scheduler.schedule`).
        """
        working = [runner for runner in self._runners.values() if runner.scheduler.has_work]
        refusals = sum(runner.scheduler.refusals for runner in working)
        for runner in sorted(working, key=ModelRunner.order):
            if runner.scheduler.in_flight:
                return None
            start = time.perf_counter()
            runner.drafters.propose(runner.scheduler.running)
            runner.spent.drafts += time.perf_counter() - start
            chunks = runner.scheduler.schedule()
            if chunks:
                for other in working:
                    other.passed += 1
                runner.chosen()
                return runner, chunks
            if runner.scheduler.blocked:
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
        counts = (len(chunks), prefill, decodes, step.seconds)
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
