"""The engine: requests in, completions out, several models, one step at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.lane import Lane, resolve_draws, resolve_reads
from qpdsl.executor.engine.memory import budget
from qpdsl.executor.engine.memory.arena import Arena, slab_bytes
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.memory import Memory, Reclaimer
from qpdsl.executor.engine.memory.pool import PagePool
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.report import StepReport as StepReport
from qpdsl.executor.engine.report import report
from qpdsl.executor.engine.scheduler import Peers, Scheduler
from qpdsl.executor.engine.step.backends import Backend, GroupedBackend, fixed_rows, kernel_backend
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Request, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

# By how much the fullest batch is forgotten at each step.
_FORGETTING = 0.02


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`max_sequences` bounds a model's decode batch; `token_budget` the tokens of one step.

    On a GPU: `deterministic` gives a sample the same bits in any batch, in steps of a fixed size; `compiled` has
    torch.compile make the layers' kernels when they first run, unless steps are deterministic; `graphs` captures decode
    steps as CUDA graphs. On a CPU in float32 bits do not depend on the batch, where layers run without their modules.
    """

    max_sequences: int = 128
    token_budget: int = 2048
    deterministic: bool = False
    compiled: bool = False
    graphs: bool = True


class Engine:
    """Serves requests to named models out of one KV budget. `step()` by hand, or `drive()` inside an asyncio loop.

    `on_step` is called with a report after every step; `kv_bytes` is the memory for the KV of all models together, in
    bytes or as text such as "4GiB" or "50%" of the device's; by default as much as is safe (see `budget.kv_bytes`).
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        on_step: Callable[[StepReport], None] | None = None,
        kv_bytes: int | str | None = None,
    ) -> None:
        self._config = config or EngineConfig()
        if kv_bytes is not None:
            budget.parse(kv_bytes)
        self._asked = kv_bytes
        self._kv_bytes = 0
        self._arena: Arena | None = None
        self._lanes: dict[str, Lane] = {}
        self._peers = Peers()
        self._reclaimer = Reclaimer()
        self._stepping = False
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
        models = {**{lane.name: lane.model for lane in self._lanes.values()}, name: model}
        if self._arena is None or not self.has_work:
            try:
                self._cut(models)
            except EngineError:
                self._cut({each: models[each] for each in models if each != name})
                raise
        else:
            self._peers.free_slab(self._reclaimer)
            self._lanes[name] = self._lane(name, model, self._arena)

    def _cut(self, models: Mapping[str, PagedModel]) -> None:
        """Makes the arena anew for these models. Whatever was there goes first: a budget may be what is free."""
        self._arena, self._lanes = None, {}
        self._peers, self._reclaimer = Peers(), Reclaimer()
        if not models:
            return
        device = next(iter(models.values())).device
        self._kv_bytes = budget.kv_bytes(self._asked, device, lambda: self._largest_step(models.values()))
        size = slab_bytes([each.layout for each in models.values()], self._kv_bytes)
        self._arena = Arena(self._kv_bytes, size, device)
        for name, model in models.items():
            self._lanes[name] = self._lane(name, model, self._arena)

    def _lane(self, name: str, model: PagedModel, arena: Arena) -> Lane:
        layouts = [*(lane.model.layout for lane in self._lanes.values()), model.layout]
        # Each of the others keeps the slab of its scratch page; a page beside scratch is the least to serve anything.
        own = arena.slabs - len(layouts) + 1
        if any(own * arena.fewest_pages(layout) < 2 for layout in layouts):
            needs = (len(layouts) + 1) * arena.slab_bytes
            raise EngineError(
                f"the KV budget of {self._kv_bytes:,} bytes is too small for {name}: its pages take "
                f"{model.layout.page_bytes:,} bytes, and {needs:,} are the least that could do"
            )
        pool = PagePool(arena, name, model.layout)
        cache = KVCache(arena.buffer, model.layout, pool.scratch)
        memory = Memory(pool, cache.copy_page, 2.0 * model.parameters, self._reclaimer)
        config = self._config
        rows = fixed_rows(config.max_sequences) if config.deterministic and model.kernels else None
        scheduler = Scheduler(memory, config.max_sequences, rows or config.token_budget, self._peers)
        return Lane(name, model, self._backend(model, cache, rows), scheduler)

    def _backend(self, model: PagedModel, cache: KVCache, rows: int | None) -> Backend:
        if model.native:
            # What compiles it need not be there where nothing is compiled.
            from qpdsl.executor.engine.step.backends import NativeBackend

            return NativeBackend(model, cache)
        if not model.kernels:
            return GroupedBackend(model, cache)
        # A step with an early exit runs the modules: whether layers are compiled would hang on the batch.
        if self._config.compiled and rows is None:
            model.compile()
        return kernel_backend(model, cache, rows, self._config.graphs)

    def _largest_step(self, models: Iterable[PagedModel]) -> None:
        """Runs each model once on as many tokens and samples as a step can have, for its memory to be measured."""
        config = self._config
        for model in models:
            length = min(config.token_budget, model.max_positions - 1)
            prompts = -(-config.token_budget // length)
            pages = prompts * (length // model.layout.page_size + 2) + 1
            trial = Engine(replace(config, graphs=False), kv_bytes=pages * model.layout.page_bytes)
            trial.add("trial", model)
            keys = tuple(range(max(1, config.max_sequences // prompts)))
            for at in range(prompts):
                prompt = ((at + 1) % model.vocabulary,) * length
                trial.submit("trial", GenerateRequest(prompt, keys, SamplingParams(), 2))
            trial.step()

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def kv_bytes(self) -> int:
        """The memory for the KV of all models together; 0 before the first is added."""
        return self._kv_bytes

    def busy(self, model: str) -> int:
        """The sequences that a model has to work at; a prompt that is not forked yet counts for all its samples."""
        scheduler = self._lanes[model].scheduler
        return sum(sequence.copies for queue in (scheduler.running, scheduler.waiting) for sequence in queue)

    @property
    def has_work(self) -> bool:
        return any(lane.scheduler.has_work for lane in self._lanes.values())

    def submit(self, model: str, request: Request) -> Ticket:
        """Queues a request. Raises EngineError where the model's context, vocabulary or memory does not hold it."""
        paged, scheduler = self._lanes[model].model, self._lanes[model].scheduler
        sequence_tokens = request.prompt if isinstance(request, GenerateRequest) else request.tokens
        spare = 1 if isinstance(request, GenerateRequest) else 0
        if len(sequence_tokens) + spare > paged.max_positions:
            raise EngineError(
                f"the context has {len(sequence_tokens)} tokens, {model} takes {paged.max_positions - spare}"
            )
        if max(sequence_tokens) >= paged.vocabulary:
            raise EngineError(f"token {max(sequence_tokens)} is none of the {paged.vocabulary} that {model} knows")
        if isinstance(request, GenerateRequest) and request.early is not None and not paged.has_middle:
            raise EngineError(f"{model} has no middle layer to leave at")
        if (reason := scheduler.too_large(len(sequence_tokens))) is not None:
            raise EngineError(reason)
        ticket = Ticket(request, partial(self._cancel, scheduler), scheduler.promote)
        scheduler.add(Sequence.of(ticket, request))
        if self._arrived is not None:
            self._arrived.set()
        return ticket

    @torch.inference_mode()
    def step(self) -> None:
        """One forward of one model that has work and gets memory for some of it."""
        start = time.monotonic()
        lane, chunks = self._schedule()
        if not chunks:
            return
        scheduler = lane.scheduler
        self._stepping = True
        try:
            with working_on(lane.model.device):
                early = any(_leaves_early(chunk.sequence) for chunk in chunks)
                forwarded = lane.backend.forward(chunks, early)
                scheduler.advance(chunks)
                resolve_reads(lane, forwarded)
                resolve_draws(lane, forwarded)
        finally:
            self._stepping = False
            self._retire_cancelled()
        self._report(lane, chunks, time.monotonic() - start)

    async def drive(self) -> None:
        """Steps for as long as the task lives, letting the awaiting coroutines run in between."""
        # An event belongs to one loop, an engine may see several.
        self._arrived = asyncio.Event()
        while True:
            if self.has_work:
                self.step()
                # One turn of the loop wakes the coroutines whose tickets resolved, a second lets them submit.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def check_integrity(self) -> None:
        """AssertionError unless the page accounts of every model balance."""
        for lane in self._lanes.values():
            scheduler = lane.scheduler
            scheduler.memory.check_integrity([*scheduler.running, *scheduler.waiting])
        if self._arena is not None:
            self._arena.check_integrity()

    def _schedule(self) -> tuple[Lane, list[Chunk]]:
        """A model and the chunks of its next step; none where requests failed instead.

        A model that gets no memory now lets another step (see `Scheduler.schedule`).
        """
        working = [lane for lane in self._lanes.values() if lane.scheduler.has_work]
        if not working:
            raise RuntimeError("the engine has no work")
        refused = sum(lane.scheduler.refusals for lane in working)
        for lane in sorted(working, key=Lane.urgency, reverse=True):
            chunks = lane.scheduler.schedule()
            if chunks:
                for other in working:
                    other.passed += 1
                lane.passed = 0
                lane.peak = max(lane.scheduler.ready, lane.peak * (1 - _FORGETTING), 1.0)
                return lane, chunks
        if sum(each.scheduler.refusals for each in working) == refused:
            raise RuntimeError("no sequence got memory, and none was refused")
        return lane, []

    def _cancel(self, scheduler: Scheduler, ticket: Ticket) -> None:
        """Frees the pages of a request, but not under the step that reads them."""
        if self._stepping:
            self._cancelled.append((scheduler, ticket))
        else:
            scheduler.cancel(ticket)

    def _retire_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for scheduler, ticket in cancelled:
            scheduler.cancel(ticket)

    def _report(self, lane: Lane, chunks: list[Chunk], seconds: float) -> None:
        if self._on_step is None:
            return
        decodes = sum(chunk.count == 1 and chunk.sequence.drawn > 1 for chunk in chunks)
        prefill = sum(chunk.count for chunk in chunks) - decodes
        self._on_step(report(lane.name, lane.scheduler, len(chunks), prefill, decodes, seconds))


def _leaves_early(sequence: Sequence) -> bool:
    return isinstance(sequence.request, GenerateRequest) and sequence.request.early is not None
