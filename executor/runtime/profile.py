"""Measures a device for the planner: copies, matrix products, and what steps of a model take through the engine.

Everything runs as a program's requests would: through the scheduler, the paged cache and the sampler, on token ids that
mean nothing. See `planner/device.py` for what the figures are.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.runtime.loading import TextModel
from qpdsl.executor.runtime.profile_kv import Again, measure_kv
from qpdsl.executor.runtime.trial import BATCHES, CHUNKS, CONTEXT, Clock, Trial, curve_of
from qpdsl.planner.device import Device, ModelProfile, ModelShape


def measure_device(kind: str, dtype: torch.dtype, clock: Clock = time.perf_counter) -> Device:
    """The device alone, no model on it yet. `clock` tells the seconds that count."""
    large = 1 << 26 if kind == "cpu" else 1 << 30
    source = torch.empty(large // 4, dtype=torch.float32, device=kind).uniform_()
    target = torch.empty_like(source)
    bandwidth = 2 * large / _best(lambda: target.copy_(source), kind, clock)
    width = 1024 if kind == "cpu" else 8192
    left, right = (torch.randn(width, width, device=kind).to(dtype) for _ in range(2))
    peak = 2 * width**3 / _best(lambda: left @ right, kind, clock)
    little = torch.randn(16, 64, device=kind).to(dtype)
    weight = torch.randn(64, 64, device=kind).to(dtype)
    # A layer is about ten such calls.
    overhead = 10 * _best(lambda: little @ weight, kind, clock, 20)
    name = torch.cuda.get_device_name(kind) if kind.startswith("cuda") else _processor()
    short = str(dtype).removeprefix("torch.")
    return Device(name, kind, short, torch.get_num_threads(), bandwidth, peak, overhead)


def shape_of(model: PagedModel) -> ModelShape:
    """The numbers of a loaded model; embeddings that its head shares are multiplied with, others looked up only."""
    layout = model.layout
    heads = layout.kv_heads * model.fold
    return ModelShape(model.parameters, layout.layers, heads, layout.kv_heads, layout.head_dim, model.dtype.itemsize)


def measure_model(
    model: TextModel, *, tables: bool = True, clock: Clock = time.perf_counter, again: Again | None = None
) -> ModelProfile:
    """Steps of one model by size and, with `tables`, its throughput by KV memory and batch.

    Where `again` loads the model with keys and values in eight bits, also what that does. Raises ModelError.
    """
    trial = Trial(model, clock)
    # The first steps of a model are slower than all others.
    trial.decode(4)
    trial.prefill(CHUNKS[0])
    prefill, decode = trial.prefills(), trial.decodes()
    (small, low), (large, high) = prefill[:2] if len(prefill) > 1 else (prefill[0], (prefill[0][0] * 2, prefill[0][1]))
    overhead = min(max(low - (high - low) / (large - small) * small, 0.0), decode[0][1] if decode else low)
    batches = [int(size) for size, _ in (decode or prefill)[::2] if size <= max(BATCHES)]
    return ModelProfile(
        shape_of(model.paged),
        overhead,
        CONTEXT,
        # A reward model writes nothing: the curve is never asked.
        curve_of(decode or prefill),
        curve_of(prefill),
        trial.table(batches, trial.generating) if tables and model.writes else None,
        trial.table(batches, trial.scoring) if tables else None,
        measure_kv(model, again, clock) if again is not None else {},
        trial.reading(),
    )


<<<<<<< HEAD
def _best(work: Callable[[], object], device: str, clock: Clock, times: int = 5) -> float:
=======
@dataclass
class _Trial:
    """Loads for one model. `last` is how long the latest step took, in seconds; the next one is larger."""

    model: TextModel
    last: float = 0.0
    noise: random.Random = field(default_factory=lambda: random.Random(0))

    def decode(self, batch: int) -> float | None:
        """Median seconds of a step in which `batch` sequences draw; None where such a step would take too long."""
        if not self.model.writes or self.last > _LONGEST_STEP:
            return None
        engine, seconds = self._engine(None)
        for _ in range(batch):
            self._draw(engine, self._tokens(self._context), 12)
        _drain(engine)
        found = [report.seconds for report in seconds if report.decode_tokens == batch and not report.prefill_tokens]
        return self._seen(statistics.median(found)) if found else None

    def prefill(self, tokens: int) -> float | None:
        """Median seconds of a step that computes `tokens` prompt tokens, in texts of `_CONTEXT` at most."""
        if self.last > _LONGEST_STEP:
            return None
        found = []
        for _ in range(3):
            engine, reports = self._engine(None)
            for start in range(0, tokens, self._context):
                self._read(engine, self._tokens(min(self._context, tokens - start)))
            _drain(engine)
            found.append(sum(report.seconds for report in reports))
        return self._seen(statistics.median(found))

    def table(self, batches: Sequence[int], work: Callable[[Engine, int], int]) -> Table | None:
        """Throughput of `work`, which returns its tokens, for every batch and part of the memory; None for no time."""
        start = time.perf_counter()
        whole = max(batches) * (self._context + _ROUNDS * _STEP + self.model.paged.layout.page_size)
        kv_tokens = [int(whole * part) for part in _PARTS]
        columns: list[list[float]] = []
        for batch in batches:
            if columns and time.perf_counter() - start > _TABLE_SECONDS:
                break
            columns.append([self._rate(work, batch, kv) for kv in kv_tokens])
        rates = tuple(zip(*columns, strict=True))
        return Table(tuple(kv_tokens), tuple(batches[: len(columns)]), rates)

    def generating(self, engine: Engine, batch: int) -> int:
        """Steps of searches side by side: each goes on from what it wrote in the round before."""
        texts = [self._tokens(self._context) for _ in range(batch)]
        for _ in range(_ROUNDS):
            tickets = [self._draw(engine, text, _STEP) for text in texts]
            _drain(engine)
            texts = [text + ticket.result().samples[0].tokens for text, ticket in zip(texts, tickets, strict=True)]
        return batch * _ROUNDS * _STEP

    def scoring(self, engine: Engine, batch: int) -> int:
        """Scores of the same texts, each a step longer in every round."""
        texts = [self._tokens(self._context) for _ in range(batch)]
        for _ in range(_ROUNDS):
            for text in texts:
                self._read(engine, text)
            _drain(engine)
            texts = [text + self._tokens(_STEP) for text in texts]
        return batch * _ROUNDS * _STEP

    def _rate(self, work: Callable[[Engine, int], int], batch: int, kv_tokens: int) -> float:
        engine, _ = self._engine(kv_tokens)
        start = time.perf_counter()
        try:
            done = work(engine, batch)
        except EngineError:
            # The memory does not hold one of these texts.
            return 0.0
        return done / (time.perf_counter() - start)

    def _engine(self, kv_tokens: int | None) -> tuple[Engine, list[StepReport]]:
        """An engine of its own, with an empty cache of so many tokens at most."""
        reports: list[StepReport] = []
        layout = self.model.paged.layout
        kv_bytes = None if kv_tokens is None else (kv_tokens // layout.page_size + 2) * layout.page_bytes
        config = EngineConfig(max_sequences=max(_BATCHES), token_budget=max(_CHUNKS))
        engine = Engine(config, reports.append, kv_bytes)
        engine.add(self.model.name, self.model.paged)
        return engine, reports

    def _draw(self, engine: Engine, prompt: tuple[int, ...], tokens: int) -> Ticket:
        def watch(index: int) -> StopWatch:
            return StopWatch(self.model.spelling, "\N{SYMBOL FOR UNIT SEPARATOR}" * 2)

        key = self.noise.getrandbits(63)
        return engine.submit(self.model.name, GenerateRequest(prompt, (key,), SamplingParams(0.8), tokens, watch=watch))

    def _read(self, engine: Engine, tokens: tuple[int, ...]) -> None:
        engine.submit(self.model.name, ReadRequest(tokens, (len(tokens) - 1,), (0,)))

    @property
    def _context(self) -> int:
        return min(_CONTEXT, self.model.paged.max_positions - (_ROUNDS + 1) * _STEP)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.noise.randrange(self.model.paged.vocabulary) for _ in range(count))

    def _seen(self, seconds: float) -> float:
        self.last = seconds
        return seconds


def _drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def _rising(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """A larger step never takes less than a smaller one: what says so is noise."""
    found: list[tuple[float, float]] = []
    for size, seconds in points:
        found.append((size, max(seconds, found[-1][1] if found else 0.0)))
    return tuple(found)


def _best(work: Callable[[], object], device: str, times: int = 5) -> float:
>>>>>>> search8
    """The least seconds of some runs, after one that warms up."""

    def once() -> float:
        start = clock()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return clock() - start

    once()
    return min(once() for _ in range(times))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
