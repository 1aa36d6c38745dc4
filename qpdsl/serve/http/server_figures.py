"""What `/metrics` tells, in Prometheus' text format.

Its labels are models, outcomes and the names of keys, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qpdsl.executor.events.events import EngineStepped, Event
from qpdsl.executor.events.stream import EventStream
from qpdsl.serve.served_model import TokenUsage

# How a request ended: answered; not what the server does; the program or the model gave no answer; it took too long;
# the client went away; the server had no room, or drains; a fault.
Outcome = Literal["answered", "refused", "failed", "timeout", "cancelled", "rejected", "error"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Busy(Protocol):
    """What has the models."""

    def busy(self, model: str) -> int:
        """How much a model has to work at now. Raises KeyError where it is gone."""


class Replicas(Busy, Protocol):
    """The processes that answer, where there are several."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many take requests, and how many load."""

    @property
    def lost(self) -> int:
        """How many were lost by now."""

    @property
    def resent(self) -> int:
        """How many requests were asked again, since their replica was lost."""


class ServerFigures:
    """Counts what requests come to. `running` and `waiting` say how many there are now."""

    def __init__(
        self, running: Callable[[], int], waiting: Callable[[], int], replicas: Replicas | None = None
    ) -> None:
        self._registry = registry = CollectorRegistry()
        by_model = ["model"]
        self._requests = Counter(
            "qpdsl_requests", "Requests that ended, by outcome.", ["model", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            "qpdsl_request_seconds",
            "Seconds from a request's arrival to its end, waiting included.",
            ["model", "outcome"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._first = Histogram(
            "qpdsl_first_token_seconds",
            "Seconds from a streamed request's arrival to the first piece of its answer.",
            by_model,
            registry=registry,
            buckets=_SECONDS,
        )
        self._rows = Counter("qpdsl_answers", "Answers given back: `n` for each request.", by_model, registry=registry)
        self._prompt = Counter(
            "qpdsl_prompt_tokens", "Tokens of prompts, those found in the cache included.", by_model, registry=registry
        )
        self._cached = Counter(
            "qpdsl_cached_prompt_tokens", "Tokens of prompts found in the prefix cache.", by_model, registry=registry
        )
        self._sampled = Counter(
            "qpdsl_completion_tokens", "Tokens sampled, all search work included.", by_model, registry=registry
        )
        by_key = ["key"]
        self._key_requests = Counter(
            "qpdsl_key_requests",
            "Requests that ended, by key.",
            ["key", "outcome"],
            registry=registry,
        )
        self._key_prompt = Counter("qpdsl_key_prompt_tokens", "Tokens of prompts, by key.", by_key, registry=registry)
        self._key_cached = Counter(
            "qpdsl_key_cached_prompt_tokens", "Tokens of prompts found in the prefix cache.", by_key, registry=registry
        )
        self._key_sampled = Counter("qpdsl_key_completion_tokens", "Tokens sampled, by key.", by_key, registry=registry)
        self._engine = _EngineFigures(running, waiting, replicas)
        registry.register(self._engine)

    def follow(self, events: EventStream, engine: Busy) -> Callable[[], None]:
        """Takes what an engine reports of its steps; the function that is returned ends that."""
        self._engine.engine = engine
        return events.subscribe(self._see)

    def _see(self, event: Event) -> None:
        if isinstance(event, EngineStepped):
            self._engine.stepped(event)

    def first(self, model: str, seconds: float) -> None:
        self._first.labels(model).observe(seconds)

    def ended(self, model: str, outcome: Outcome, seconds: float, key: str = "") -> None:
        self._requests.labels(model, outcome).inc()
        self._seconds.labels(model, outcome).observe(seconds)
        if key:
            self._key_requests.labels(key, outcome).inc()

    def answered(self, model: str, choices: int, usage: TokenUsage, key: str = "") -> None:
        self._rows.labels(model).inc(choices)
        self._prompt.labels(model).inc(usage.prompt_tokens)
        self._cached.labels(model).inc(usage.cached_tokens)
        self._sampled.labels(model).inc(usage.completion_tokens)
        if key:
            self._key_prompt.labels(key).inc(usage.prompt_tokens)
            self._key_cached.labels(key).inc(usage.cached_tokens)
            self._key_sampled.labels(key).inc(usage.completion_tokens)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _EngineFigures(Collector):
    """Of each model of the engine, the latest report and sums over the steps."""

    def __init__(self, running: Callable[[], int], waiting: Callable[[], int], replicas: Replicas | None) -> None:
        self._running = running
        self._waiting = waiting
        self._replicas = replicas
        self.engine: Busy | None = None
        self._latest: dict[str, EngineStepped] = {}
        self._sums: dict[str, list[float]] = {}

    def stepped(self, event: EngineStepped) -> None:
        report = event.report
        self._latest[report.model] = event
        sums = self._sums.setdefault(report.model, [0, 0, 0, 0.0])
        sums[0] += _figure(report, "steps") or 1
        sums[1] += report.prefill_tokens
        sums[2] += report.decode_tokens
        sums[3] += _figure(report, "seconds") or 0.0

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("qpdsl_requests_running", "Requests that run.", value=self._running())
        yield GaugeMetricFamily("qpdsl_requests_waiting", "Requests that wait for a place.", value=self._waiting())
        yield from self._of_replicas()
        busy = self._busy()
        for place, (name, help) in enumerate(_STEP_SUMS):
            counter = CounterMetricFamily(name, help, labels=["model"])
            for model, sums in self._sums.items():
                counter.add_metric([model], sums[place])
            yield counter
        for name, field, help in _STEP_GAUGES:
            gauge = GaugeMetricFamily(name, help, labels=["model"])
            for model, event in self._latest.items():
                idle = field in _OF_WORK and not busy[model]
                if (value := _figure(event.report, field)) is not None:
                    gauge.add_metric([model], 0 if idle else value)
            yield gauge
        for name, field, help in _STEP_COUNTERS:
            counter = CounterMetricFamily(name, help, labels=["model"])
            for model, event in self._latest.items():
                if (value := _figure(event.report, field)) is not None:
                    counter.add_metric([model], value)
            yield counter

    def _busy(self) -> dict[str, int]:
        """How busy each model is; those that are gone with their replica are forgotten."""
        busy: dict[str, int] = {}
        for model in list(self._latest):
            try:
                busy[model] = 1 if self.engine is None else self.engine.busy(model)
            except KeyError:
                del self._latest[model], self._sums[model]
        return busy

    def _of_replicas(self) -> Iterator[Metric]:
        if self._replicas is None:
            return
        there = GaugeMetricFamily("qpdsl_replicas", "Replicas, by what they do.", labels=["state"])
        for state, count in zip(("ready", "loading"), self._replicas.counts, strict=True):
            there.add_metric([state], count)
        yield there
        yield CounterMetricFamily("qpdsl_replicas_lost", "Replicas that were lost.", value=self._replicas.lost)
        resent = "Requests that were asked again, as their replica was lost."
        yield CounterMetricFamily("qpdsl_requests_resent", resent, value=self._replicas.resent)


def _figure(report: Any, name: str) -> float | None:
    """A figure of a step, or of the steps that a replica summed up; None where it has none of the name."""
    found: float | None = getattr(report, name, None)
    return getattr(report, "others", {}).get(name) if found is None else found


# What is summed over the steps, in the order in which `stepped` has it.
_STEP_SUMS = (
    ("qpdsl_engine_steps", "Forward passes."),
    ("qpdsl_engine_prefill_tokens", "Tokens of prompts that were computed."),
    ("qpdsl_engine_decode_tokens", "Tokens that were drawn."),
    ("qpdsl_engine_seconds", "Seconds of forward passes."),
)
# Fields of `StepReport`: how things stand after the latest step, and what it counts itself.
_STEP_GAUGES = (
    ("qpdsl_engine_running_sequences", "running", "Sequences at work after the latest forward pass."),
    ("qpdsl_engine_waiting_sequences", "waiting", "Sequences that waited for room then."),
    ("qpdsl_kv_pages_used", "pages_held", "Pages of keys and values that sequences or the prefix cache hold."),
    ("qpdsl_kv_pages", "pages", "Pages of keys and values that there is memory for."),
    ("qpdsl_kv_leased_bytes", "leased_bytes", "Bytes of memory that the model's keys and values take."),
    ("qpdsl_resident_bytes", "resident_bytes", "Bytes of memory of the whole process."),
)
# What there is none of where a model has nothing to do: a request that is given up ends without a step.
_OF_WORK = ("running", "waiting")
_STEP_COUNTERS = (
    ("qpdsl_engine_cached_tokens", "cached_tokens", "Tokens of prompts found in the prefix cache."),
    ("qpdsl_engine_preemptions", "preemptions", "Sequences that gave their memory up and were computed again."),
    ("qpdsl_engine_evictions", "evictions", "Pages that the prefix cache gave up."),
)
