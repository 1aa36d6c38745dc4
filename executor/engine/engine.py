"""The engine: requests in, completions out, several models, one step at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from qpdsl.executor.engine.batch import Batch, build
from qpdsl.executor.engine.draw import draw, read
from qpdsl.executor.engine.memory import Memory
from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.engine.request import Finish, GenerateRequest, Request
from qpdsl.executor.engine.scheduler import Chunk, Scheduler
from qpdsl.executor.engine.sequence import Sequence
from qpdsl.executor.engine.ticket import EngineError, Ticket

# Nothing can be drawn or scored from NaN or infinity.
_NOT_FINITE = "the model's logits are not finite numbers; a wider dtype may help"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`max_sequences` bounds a model's decode batch; `token_budget` the tokens of one step."""

    max_sequences: int = 128
    token_budget: int = 2048


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step of one model did: prefill and decode tokens computed; then its sequences waiting and pages held

    after the step, the pages it has, and its preemptions so far.
    """

    model: str
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    pages_held: int
    pages: int
    preemptions: int


class Engine:
    """Serves requests to named models. `step()` by hand, or `drive()` inside an asyncio loop.

    `on_step` is called with a report after every step.
    """

    def __init__(self, config: EngineConfig | None = None, on_step: Callable[[StepReport], None] | None = None) -> None:
        self._config = config or EngineConfig()
        self._models: dict[str, PagedModel] = {}
        self._schedulers: dict[str, Scheduler] = {}
        self._turn: list[str] = []
        self._on_step = on_step
        self._arrived: asyncio.Event | None = None

    def add(self, name: str, model: PagedModel) -> None:
        """Makes a model ready for requests under `name`."""
        memory = Memory(model.pages, model.page_size, model.cache.copy_page)
        self._models[name] = model
        self._schedulers[name] = Scheduler(memory, self._config.max_sequences, self._config.token_budget)
        self._turn.append(name)

    @property
    def has_work(self) -> bool:
        return any(scheduler.has_work for scheduler in self._schedulers.values())

    def submit(self, model: str, request: Request) -> Ticket:
        """Queues a request. Raises EngineError where the model's context or vocabulary does not hold it."""
        paged, scheduler = self._models[model], self._schedulers[model]
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
        ticket = Ticket(request, scheduler.cancel)
        scheduler.add(Sequence.of(ticket, request))
        if self._arrived is not None:
            self._arrived.set()
        return ticket

    @torch.inference_mode()
    def step(self) -> None:
        """One forward of one model that has work, the models taking turns."""
        name = self._pick()
        scheduler, model = self._schedulers[name], self._models[name]
        chunks = scheduler.schedule()
        if not chunks:
            return
        batch = build(chunks, model.page_size, model.fold, model.device)
        hidden, middle = model.forward(batch, middle=any(_leaves_early(chunk.sequence) for chunk in chunks))
        for chunk in chunks:
            chunk.sequence.computed += chunk.count
        self._resolve_reads(scheduler, model, batch, hidden)
        self._resolve_draws(scheduler, model, batch, hidden, middle)
        self._report(name, chunks)

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
        for scheduler in self._schedulers.values():
            scheduler.memory.check_integrity([*scheduler.running, *scheduler.waiting])

    def _pick(self) -> str:
        for name in self._turn:
            if self._schedulers[name].has_work:
                self._turn.remove(name)
                self._turn.append(name)
                return name
        raise RuntimeError("the engine has no work")

    def _resolve_reads(self, scheduler: Scheduler, model: PagedModel, batch: Batch, hidden: torch.Tensor) -> None:
        at = 0
        for chunk, rows in batch.readers:
            sequence, request = chunk.sequence, chunk.sequence.request
            if not isinstance(request, GenerateRequest):
                values = read(model, hidden[at : at + rows], request, len(sequence.read)).tolist()
                sequence.read.extend(tuple(row) for row in values)
                if not all(math.isfinite(value) for row in values for value in row):
                    _fail(scheduler, sequence, _NOT_FINITE)
                elif len(sequence.read) == len(request.positions):
                    scheduler.finish(sequence)
                    sequence.ticket.read(sequence)
            at += rows

    def _resolve_draws(
        self, scheduler: Scheduler, model: PagedModel, batch: Batch, hidden: torch.Tensor, middle: torch.Tensor | None
    ) -> None:
        rows: list[int] = []
        sequences: list[Sequence] = []
        at = 0
        for chunk, count in batch.readers:
            if isinstance(chunk.sequence.request, GenerateRequest):
                samples = scheduler.fork(chunk.sequence) if chunk.sequence.unforked else [chunk.sequence]
                sequences.extend(samples)
                rows.extend([at] * len(samples))
            at += count
        if not sequences:
            return
        drawn = draw(model, hidden, middle, rows, sequences)
        tokens, logprobs, near = drawn.tokens.tolist(), drawn.logprobs.tolist(), drawn.near_ties.tolist()
        for index, sequence in enumerate(sequences):
            if sequence.ticket.done:
                continue
            if sequence.mask is not None and sequence.mask.error is not None:
                _fail(scheduler, sequence, f"the output cannot be held to its constraint: {sequence.mask.error}")
                continue
            if not math.isfinite(logprobs[index]):
                _fail(scheduler, sequence, _NOT_FINITE)
                continue
            sequence.tokens.append(tokens[index])
            sequence.logprob += logprobs[index]
            sequence.near_ties += near[index]
            finish = self._finish(model, sequence, tokens[index])
            if finish is not None:
                scheduler.finish(sequence)
                sequence.ticket.finished(sequence, sequence.sample(finish))

    def _finish(self, model: PagedModel, sequence: Sequence, token: int) -> Finish | None:
        request = sequence.request
        assert isinstance(request, GenerateRequest)
        if token in request.eos:
            return "eos"
        matched = sequence.mask is not None and sequence.mask.push(token)
        stopped = sequence.watch is not None and sequence.watch.push(token)
        if matched or stopped:
            return "match" if matched else "stop"
        if sequence.drawn == request.max_tokens or len(sequence.tokens) == model.max_positions:
            return "length"
        return None

    def _report(self, name: str, chunks: list[Chunk]) -> None:
        if self._on_step is None:
            return
        scheduler = self._schedulers[name]
        decodes = sum(chunk.count == 1 and chunk.sequence.drawn > 1 for chunk in chunks)
        total = sum(chunk.count for chunk in chunks)
        memory = scheduler.memory
        self._on_step(
            StepReport(
                name,
                total - decodes,
                decodes,
                len(scheduler.waiting),
                memory.held,
                memory.pool.capacity,
                scheduler.preemptions,
            )
        )


def _fail(scheduler: Scheduler, sequence: Sequence, reason: str) -> None:
    sequence.ticket.fail(EngineError(reason))
    scheduler.cancel(sequence.ticket)


def _leaves_early(sequence: Sequence) -> bool:
    return isinstance(sequence.request, GenerateRequest) and sequence.request.early is not None
