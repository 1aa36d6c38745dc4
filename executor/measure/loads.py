"""Loads by which a model is measured: steps of a given size, and concurrent searches, on random token ids."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket
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
        engine, reports = self._engine(None)
        for _ in range(batch):
            self._draw(engine, self._tokens(int(self._context * part)), 16)
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
            engine, reports = self._engine(None)
            for start in range(0, tokens, self._context):
                self._read(engine, self._tokens(min(self._context, tokens - start)))
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
            tickets = [self._draw(engine, text, _STEP) for text in texts]
            _finish(engine)
            texts = [text + ticket.result().samples[0].tokens for text, ticket in zip(texts, tickets, strict=True)]
        return batch * _ROUNDS * _STEP

    def scoring(self, engine: PagedEngine, batch: int) -> int:
        """Scores of the same texts, each a step longer in every round."""
        texts = [self._tokens(self._context) for _ in range(batch)]
        for _ in range(_ROUNDS):
            for text in texts:
                self._read(engine, text)
            _finish(engine)
            texts = [text + self._tokens(_STEP) for text in texts]
        return batch * _ROUNDS * _STEP

    def texts(self, count: int, tokens: int) -> list[tuple[int, ...]]:
        """Texts that the model writes; random tokens where it writes none."""
        length = min(tokens, self._context)
        if not self.model.writes:
            return [self._tokens(length) for _ in range(count)]
        engine, _ = self._engine(None)
        prompts = [self._tokens(4) for _ in range(count)]
        tickets = [self._draw(engine, prompt, length) for prompt in prompts]
        _finish(engine)
        return [prompt + ticket.result().samples[0].tokens for prompt, ticket in zip(prompts, tickets, strict=True)]

    def logits(self, request: ReadRequest) -> list[float]:
        """The logits that a request reads, one position after another."""
        engine, _ = self._engine(None)
        ticket = engine.submit(self.model.name, request)
        _finish(engine)
        return [value for values in ticket.result().logits for value in values]

    def _rate(self, work: Callable[[PagedEngine, int], int], batch: int, kv_tokens: int) -> float:
        engine, _ = self._engine(kv_tokens)
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

    def _engine(self, kv_tokens: int | None) -> tuple[PagedEngine, list[StepReport]]:
        """A new engine and its reports, with an empty cache of at most `kv_tokens` tokens."""
        reports: list[StepReport] = []
        layout = self.model.paged.layout
        kv_bytes = None if kv_tokens is None else (kv_tokens // layout.page_size + 2) * layout.page_bytes
        config = EngineConfig(max_sequences=max(BATCHES), token_budget=max(CHUNKS))
        engine = PagedEngine(config, reports.append, kv_bytes)
        engine.add(self.model.name, self.model.paged)
        return engine, reports

    def _draw(self, engine: PagedEngine, prompt: tuple[int, ...], tokens: int) -> Ticket:
        def watch(index: int) -> StopWatch:
            return StopWatch(self.model.detokenizer, Stops(("\N{SYMBOL FOR UNIT SEPARATOR}" * 2,)))

        key = self.noise.getrandbits(63)
        return engine.submit(self.model.name, GenerateRequest(prompt, (key,), SamplingParams(0.8), tokens, watch=watch))

    def _read(self, engine: PagedEngine, tokens: tuple[int, ...]) -> None:
        engine.submit(self.model.name, ReadRequest(tokens, (len(tokens) - 1,), (0,)))

    @property
    def _context(self) -> int:
        return min(CONTEXT, self.model.paged.max_positions - (_ROUNDS + 1) * _STEP)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.noise.randrange(self.model.paged.vocabulary) for _ in range(count))

    def _noted(self, seconds: float) -> float:
        self.last = seconds
        return seconds


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
