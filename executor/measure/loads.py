"""Loads by which a model is measured: steps of a given size, and concurrent searches, on random token ids."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from qpdsl.executor.engine.largest_step import memory_of
from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Completion,
    GenerateRequest,
    LogitsRequest,
    ReadRequest,
    Request,
    SamplingParams,
)
from qpdsl.executor.text.stop import Stops, StopWatch
from qpdsl.planner.cost.device import Curve, Table

# Tokens of a usual context, sequences of the steps that decode, and tokens of the steps that prefill.
CONTEXT = 160
BATCHES = (1, 4, 16, 64, 128)
CHUNKS = (16, 64, 256, 1024, 2048)
# Parts of the KV memory that the largest batch of a table would need.
_PARTS = (0.25, 0.5, 1.0)
# A search of a table has this many rounds of so many tokens.
_ROUNDS, _STEP = 2, 8
# The tokens that a sequence of a step that decodes draws in all.
_DRAWN = 16
# Seconds: after a step that took longer none is larger, and a table gets no new column after this time.
_LONGEST_STEP = 2.0
_TABLE_SECONDS = 8.0
# The batch by which the cost of a context is measured, and the part of the usual context that it is compared with.
_READING, _SHORT = 16, 0.25

# The seconds of a clock.
Timer = Callable[[], float]


@dataclass
class ModelLoads:
    """Loads for one model. `last` is how long the latest step took, in seconds; the next step is larger."""

    model: PagedTextModel
    clock: Timer
    last: float = 0.0
    noise: random.Random = field(default_factory=lambda: random.Random(0))

    def decode(self, batch: int, part: float = 1.0) -> float | None:
        """Seconds of a step in which `batch` sequences draw; None where such a step would take too long.

        Their contexts are `part` of the usual one.
        """
        if not self.model.writes or self.last > _LONGEST_STEP:
            return None
        requests = [self._draw(self._tokens(int(self._context * part)), _DRAWN) for _ in range(batch)]
        with self._engine(memory_of(self.model.paged, requests, _DRAWN)) as (engine, reports):
            for request in requests:
                engine.submit(self.model.name, request)
            pairs = zip(reports, self._step_seconds(engine, reports), strict=True)
        steps = [seconds for report, seconds in pairs if report.decode_tokens == batch and not report.prefill_tokens]
        return self._noted(_lower_quartile(steps)) if steps else None

    def decodes(self) -> list[tuple[float, float]]:
        """Seconds of steps that decode, by their number of sequences."""
        self.last = 0.0
        return [(float(size), seconds) for size in BATCHES if (seconds := self.decode(size)) is not None]

    def prefills(self) -> list[tuple[float, float]]:
        """Seconds of steps that prefill, by their number of tokens."""
        self.last = 0.0
        return [(float(size), seconds) for size in CHUNKS if (seconds := self.prefill(size)) is not None]

    def reading(self) -> float | None:
        """Seconds that a token of context costs a sequence in a step that decodes; None where it cannot be measured."""
        long, short = self.decode(_READING), self.decode(_READING, _SHORT)
        if long is None or short is None:
            return None
        tokens = self._context - int(self._context * _SHORT)
        return max(long - short, 0.0) / (tokens * _READING)

    def prefill(self, tokens: int) -> float | None:
        """Seconds of a step that computes `tokens` prompt tokens, in texts of `CONTEXT` at most."""
        if self.last > _LONGEST_STEP:
            return None
        steps = []
        for _ in range(5):
            lengths = [min(self._context, tokens - start) for start in range(0, tokens, self._context)]
            requests = [_read(self._tokens(length)) for length in lengths]
            with self._engine(memory_of(self.model.paged, requests)) as (engine, reports):
                for request in requests:
                    engine.submit(self.model.name, request)
                steps.append(sum(self._step_seconds(engine, reports)))
        return self._noted(_lower_quartile(steps))

    def table(self, batches: Sequence[int], work: Callable[[PagedEngine, int], int]) -> Table:
        """Tokens a second of `work`, which returns its number of tokens, for every batch and part of the KV memory."""
        start = self.clock()
        whole = max(batches) * (self._context + _ROUNDS * _STEP + self.model.paged.layout.page_size)
        kv_tokens = [int(whole * part) for part in _PARTS]
        columns: list[list[float]] = []
        for batch in batches:
            if columns and self.clock() - start > _TABLE_SECONDS:
                break
            columns.append([self._rate(work, batch, kv) for kv in kv_tokens])
        rates = tuple(zip(*columns, strict=True))
        return Table(tuple(kv_tokens), tuple(batches[: len(columns)]), rates)

    def generating(self, engine: PagedEngine, batch: int) -> int:
        """Steps of concurrent searches: each continues what it wrote in the round before."""
        texts = [self._tokens(self._context) for _ in range(batch)]
        for _ in range(_ROUNDS):
            tickets = [engine.submit(self.model.name, self._draw(text, _STEP)) for text in texts]
            _finish(engine)
            texts = [text + ticket.result().samples[0].tokens for text, ticket in zip(texts, tickets, strict=True)]
        return batch * _ROUNDS * _STEP

    def scoring(self, engine: PagedEngine, batch: int) -> int:
        """Scores of the same texts, each a step longer in every round."""
        texts = [self._tokens(self._context) for _ in range(batch)]
        for _ in range(_ROUNDS):
            for text in texts:
                engine.submit(self.model.name, _read(text))
            _finish(engine)
            texts = [text + self._tokens(_STEP) for text in texts]
        return batch * _ROUNDS * _STEP

    def texts(self, count: int, tokens: int) -> list[tuple[int, ...]]:
        """Texts that the model writes; random tokens where it writes none."""
        length = min(tokens, self._context)
        if not self.model.writes:
            return [self._tokens(length) for _ in range(count)]
        prompts = [self._tokens(4) for _ in range(count)]
        requests = [self._draw(prompt, length) for prompt in prompts]
        drawn = self._answers(requests, length)
        return [prompt + own.samples[0].tokens for prompt, own in zip(prompts, drawn, strict=True)]

    def logits(self, text: tuple[int, ...], positions: Sequence[int]) -> list[float]:
        """All logits, or values of a reward model, at positions of a text, one position after another."""
        head = self.model.paged.head
        if isinstance(head, ValueHead):
            (read,) = self._answers([ReadRequest(text, tuple(positions), tuple(range(head.width)))])
            return [value for values in read.logits for value in values]
        first = positions[0]
        # Those of some ids are gathered with a copy of their weights: of all ids, gigabytes.
        (read,) = self._answers([LogitsRequest(text[: positions[-1] + 1], positions[-1] + 1 - first)])
        return [float(value) for position in positions for value in read.whole[position - first]]

    def _answers(self, requests: Sequence[Request], tokens: int = 0) -> list[Completion]:
        """What requests come to in an engine of their own, each of which draws at most so many tokens."""
        with self._engine(memory_of(self.model.paged, requests, tokens)) as (engine, _):
            tickets = [engine.submit(self.model.name, request) for request in requests]
            _finish(engine)
            return [ticket.result() for ticket in tickets]

    def _rate(self, work: Callable[[PagedEngine, int], int], batch: int, kv_tokens: int) -> float:
        layout = self.model.paged.layout
        with self._engine((kv_tokens // layout.page_size + 2) * layout.page_bytes) as (engine, _):
            start = self.clock()
            try:
                done = work(engine, batch)
            except EngineError:
                # The memory is too small for one of these texts.
                return 0.0
            return done / (self.clock() - start)

    def _step_seconds(self, engine: PagedEngine, reports: Sequence[StepReport]) -> list[float]:
        """Runs the engine until it has no work; the seconds of every step that `reports` has, in order."""
        seconds: list[float] = []
        while engine.has_work:
            before, start = len(reports), self.clock()
            engine.step()
            seconds += [self.clock() - start] * (len(reports) - before)
        return seconds

    @contextmanager
    def _engine(self, kv_bytes: int) -> Iterator[tuple[PagedEngine, list[StepReport]]]:
        """A new engine with so much memory, and its reports. On a device there may be no room for two."""
        reports: list[StepReport] = []
        config = EngineConfig(max_sequences=max(BATCHES), token_budget=max(CHUNKS))
        with closing(PagedEngine(config, reports.append, kv_bytes)) as engine:
            engine.add(self.model.name, self.model.paged)
            yield engine, reports

    def _draw(self, prompt: tuple[int, ...], tokens: int) -> GenerateRequest:
        def watch(index: int) -> StopWatch:
            return StopWatch(self.model.detokenizer, Stops(("\N{SYMBOL FOR UNIT SEPARATOR}" * 2,)))

        key = self.noise.getrandbits(63)
        return GenerateRequest(prompt, (key,), SamplingParams(0.8), tokens, watch=watch)

    @property
    def _context(self) -> int:
        return min(CONTEXT, self.model.paged.max_positions - (_ROUNDS + 1) * _STEP)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.noise.randrange(self.model.paged.vocabulary) for _ in range(count))

    def _noted(self, seconds: float) -> float:
        self.last = seconds
        return seconds


def _read(tokens: tuple[int, ...]) -> ReadRequest:
    return ReadRequest(tokens, (len(tokens) - 1,), (0,))


def _finish(engine: PagedEngine) -> None:
    while engine.has_work:
        engine.step()


def _lower_quartile(seconds: Sequence[float]) -> float:
    """A robust measure of a step, since disturbances only make it longer."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


def curve_of(points: Sequence[tuple[float, float]]) -> Curve:
    """Seconds by size, made monotonic: where a larger step took less than a smaller one, that was noise."""
    curve: list[tuple[float, float]] = []
    for size, seconds in points:
        curve.append((size, max(seconds, curve[-1][1] if curve else 0.0)))
    return Curve(tuple(curve))
