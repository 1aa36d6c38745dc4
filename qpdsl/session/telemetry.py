"""The events of a run as OpenTelemetry's spans and metrics (extra `otel`), for whatever takes OTLP.

A row is a span `invoke_workflow PROGRAM`, and in it each run of an operator that asked a model is one `chat MODEL`, or
`score MODEL` where it drew nothing. Names are those of the semantic conventions for generative AI, written as strings:
the package of constants has them all as deprecated. What was asked and answered is no part of any span, since it may be
personal.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qpdsl import __version__
from qpdsl.errors import UsageError
from qpdsl.executor.events.events import Event, InstanceDone, InstanceStarted, OperatorDone, RowDone, RunStarted
from qpdsl.executor.events.stream import EventStream

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace.export import SpanProcessor

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_PROVIDER = "qpdsl"
# An unreachable collector holds a run up for no longer when it ends.
_SECONDS = 5


def is_wanted(endpoint: str | None) -> bool:
    """Whether a run is to be told of: by its option, or by the standard variables of the environment."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return endpoint is not None or any(os.environ.get(name) for name in ENDPOINTS)


def exported(stream: EventStream, endpoint: str | None) -> Callable[[], None]:
    """Tells a stream's events to an OTLP endpoint, a URL such as `http://localhost:4318`; None is the environment's.

    Returns what ends it and sends the rest. A run never waits for the endpoint while it goes on: what it does not take
    is dropped. Without the libraries nothing is told to the environment's endpoint, and UsageError is raised for one
    that was asked for.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        if endpoint is None:
            return lambda: None
        raise UsageError("telemetry needs OpenTelemetry's libraries", "`pip install 'qpdsl[otel]'`") from error
    at = [None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{kind}" for kind in ("traces", "metrics")]
    spans = BatchSpanProcessor(OTLPSpanExporter(endpoint=at[0], timeout=_SECONDS))
    metrics = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=at[1], timeout=_SECONDS))
    return told(stream, spans, metrics)


def told(stream: EventStream, spans: SpanProcessor, metrics: MetricReader) -> Callable[[], None]:
    """The same to a processor of spans and a reader of metrics."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "qpdsl")})
    tracing, metering = TracerProvider(resource=resource), MeterProvider([metrics], resource=resource)
    tracing.add_span_processor(spans)
    teller = _Teller(tracing.get_tracer("qpdsl", __version__), metering.get_meter("qpdsl", __version__))
    unsubscribe = stream.subscribe(teller.see, history=True)

    def end() -> None:
        unsubscribe()
        teller.end()
        tracing.shutdown()
        metering.shutdown(_SECONDS * 1000)

    return end


class _Teller:
    def __init__(self, tracer: Any, meter: Any) -> None:
        self._tracer = tracer
        self._program = ""
        self._seed = 0
        self._operators: Mapping[str, Mapping[str, Any]] = {}
        self._models: Mapping[str, str] = {}
        self._rows: dict[tuple[str, bool], Any] = {}
        # Unix time of the monotonic clock's zero, which events are told by.
        self._zero = time.time() - time.monotonic()
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of a request.")
        self._seconds = meter.create_histogram("gen_ai.client.operation.duration", "s", "How long a request took.")
        self._answers = meter.create_counter("qpdsl.rows", "{row}", "Rows that ended, by whether they are right.")

    def see(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._program, self._seed = event.program, event.seed
            self._operators = {own["id"]: own for own in _operators(event.plan.get("operators", ()))}
            self._models = dict(event.plan.get("models", {}))
        elif isinstance(event, InstanceStarted):
            about = {
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.provider.name": _PROVIDER,
                "gen_ai.workflow.name": self._program,
                "qpdsl.row": event.instance,
                "qpdsl.baseline": event.baseline,
                "gen_ai.request.seed": self._seed,
            }
            name = f"invoke_workflow {self._program}"
            span = self._tracer.start_span(name, start_time=self._time(event.at), attributes=about)
            self._rows[event.instance, event.baseline] = span
        elif isinstance(event, OperatorDone):
            self._operator(event)
        elif isinstance(event, InstanceDone):
            self._row(event)
        elif isinstance(event, RowDone):
            self._answers.add(1, {"correct": str(event.correct).lower()})

    def end(self) -> None:
        """Ends the spans of rows that did not."""
        for span in self._rows.values():
            span.end()

    def _operator(self, event: OperatorDone) -> None:
        if not (event.prompt_tokens or event.sampled_tokens):
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        known = self._operators.get(event.operator, {})
        words = re.findall(r"\w+", str(known.get("text", "")))
        model = next((self._models[word] for word in words if word in self._models), "")
        # There is no word for what a verifier does.
        operation = "chat" if known.get("operator") == "Generate" else "score"
        kinds = {"gen_ai.operation.name": operation, "gen_ai.provider.name": _PROVIDER, "gen_ai.request.model": model}
        usage = {
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.output_tokens": event.sampled_tokens,
            "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
        }
        place = {"qpdsl.operator": event.operator, "qpdsl.rounds": event.rounds, "gen_ai.request.seed": self._seed}
        parent = self._rows.get((event.instance, event.baseline))
        span = self._tracer.start_span(
            f"{operation} {model}".rstrip(),
            None if parent is None else set_span_in_context(parent),
            SpanKind.CLIENT,
            start_time=self._time(event.at - event.seconds),
            attributes={**kinds, **usage, **place, "gen_ai.request.choice.count": event.rows_out},
        )
        span.end(self._time(event.at))
        self._seconds.record(event.seconds, kinds)
        for kind, tokens in (("input", event.prompt_tokens), ("output", event.sampled_tokens)):
            self._tokens.record(tokens, {**kinds, "gen_ai.token.type": kind})

    def _row(self, event: InstanceDone) -> None:
        span = self._rows.pop((event.instance, event.baseline), None)
        if span is None:
            return
        span.set_attribute("gen_ai.usage.input_tokens", event.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", event.sampled_tokens)
        if event.score is not None:
            span.set_attribute("gen_ai.evaluation.score.value", event.score)
        if event.error is not None:
            from opentelemetry.trace import StatusCode

            span.set_status(StatusCode.ERROR, event.error)
        span.end(self._time(event.at))

    def _time(self, at: float) -> int:
        return int((self._zero + at) * 1e9)


def _operators(operators: Any) -> Iterator[Mapping[str, Any]]:
    """All operators of a plan as JSON, those inside others too."""
    for own in operators:
        yield own
        for value in own.values():
            if isinstance(value, list) and value and isinstance(value[0], dict) and "id" in value[0]:
                yield from _operators(value)
            elif isinstance(value, list):
                for arm in value:
                    if isinstance(arm, list):
                        yield from _operators(arm)
