"""The events of a process as OpenTelemetry's spans and metrics (extra `otel`), for whatever takes OTLP.

A row of a run, or a cell of a sweep, is a span `invoke_workflow PROGRAM`, and a request to a server `chat PROGRAM`. In
these, each run of an operator that asked a model is one `chat MODEL`, or `score MODEL` where it drew nothing, and each
call of a tool `execute_tool TOOL`. Names are those of the semantic conventions for generative AI, written as strings:
the package of constants has them all as deprecated. What was asked and answered is no part of any span, since it may be
personal.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qpdsl import __version__
from qpdsl.errors import UsageError, installing
from qpdsl.executor.events.events import (
    CellReached,
    Event,
    InstanceDone,
    InstanceStarted,
    OperatorDone,
    RequestReached,
    RowDone,
    RunStarted,
    ToolCalled,
)
from qpdsl.executor.events.stream import EventStream

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace.export import SpanProcessor

Plans = Mapping[str, Mapping[str, Any]]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_PROVIDER = "qpdsl"
# So many requests are remembered that are over.
_MAX_OVER = 1024
# An unreachable collector holds a run up for no longer when it ends.
_SECONDS = 5


def is_wanted(endpoint: str | None) -> bool:
    """Whether a run is to be told of: by its option, or by the standard variables of the environment."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return endpoint is not None or any(os.environ.get(name) for name in ENDPOINTS)


@contextlib.contextmanager
def exporting(stream: EventStream, endpoint: str | None, plans: Plans | None = None) -> Iterator[None]:
    """Tells a stream's events while the block runs, where that is wanted: see `exported`."""
    end = exported(stream, endpoint, plans) if is_wanted(endpoint) else None
    try:
        yield
    finally:
        if end is not None:
            end()


def exported(stream: EventStream, endpoint: str | None, plans: Plans | None = None) -> Callable[[], None]:
    """Tells a stream's events to an OTLP endpoint, a URL such as `http://localhost:4318`; None is the environment's.

    `plans` are those of a server's programs, by name, as `explain_json` has them. Returns what ends it and sends the
    rest. A run never waits for the endpoint while it goes on: what it does not take is dropped. Without the libraries
    nothing is told to the environment's endpoint, and UsageError is raised for one that was asked for.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        if endpoint is None:
            return lambda: None
        raise UsageError("telemetry needs OpenTelemetry's libraries", installing("otel")) from error
    at = [None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{kind}" for kind in ("traces", "metrics")]
    spans = BatchSpanProcessor(OTLPSpanExporter(endpoint=at[0], timeout=_SECONDS))
    metrics = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=at[1], timeout=_SECONDS))
    return told(stream, spans, metrics, plans)


def told(
    stream: EventStream, spans: SpanProcessor, metrics: MetricReader, plans: Plans | None = None
) -> Callable[[], None]:
    """The same to a processor of spans and a reader of metrics."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "qpdsl")})
    tracing, metering = TracerProvider(resource=resource), MeterProvider([metrics], resource=resource)
    tracing.add_span_processor(spans)
    tracer, meter = tracing.get_tracer("qpdsl", __version__), metering.get_meter("qpdsl", __version__)
    teller = _Teller(tracer, meter, plans or {})
    unsubscribe = stream.subscribe(teller.see, history=True)

    def end() -> None:
        unsubscribe()
        teller.end()
        tracing.shutdown()
        metering.shutdown(_SECONDS * 1000)

    return end


class _Plan:
    """Which model an operator of a plan asks, and whether it draws."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._operators = {own["id"]: own for own in _operators(plan.get("operators", ()))}
        self._models = dict(plan.get("models", {}))
        # What these count, the operators inside them do.
        self.around = {id.rpartition(".")[0] for id in self._operators}

    def asks(self, operator: str) -> tuple[str, str]:
        """The operation, and the model."""
        known = self._operators.get(operator, {})
        words = re.findall(r"\w+", str(known.get("text", "")))
        model = next((self._models[word] for word in words if word in self._models), "")
        # There is no word for what a verifier does.
        return "chat" if known.get("operator") == "Generate" else "score", model


class _Teller:
    def __init__(self, tracer: Any, meter: Any, plans: Plans) -> None:
        self._tracer = tracer
        self._program = ""
        self._seed: dict[str, int] = {}
        self._plan = _Plan({})
        self._plans = {name: _Plan(plan) for name, plan in plans.items()}
        self._rows: dict[tuple[str, bool], Any] = {}
        self._cells: dict[str, Any] = {}
        # Of requests, by id, with their programs. Replicas tell of operators when requests may be over.
        self._requests: dict[str, tuple[Any, str]] = {}
        self._over: deque[str] = deque()
        # Unix time of the monotonic clock's zero, which events are told by.
        self._zero = time.time() - time.monotonic()
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of a request.")
        self._seconds = meter.create_histogram("gen_ai.client.operation.duration", "s", "How long a request took.")
        self._served = meter.create_histogram("gen_ai.server.request.duration", "s", "How long a request took.")
        self._answers = meter.create_counter("qpdsl.rows", "{row}", "Rows that ended, by whether they are right.")

    def see(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._program, self._plan = event.program, _Plan(event.plan)
            self._seed = {"gen_ai.request.seed": event.seed}
        elif isinstance(event, InstanceStarted) and self._program:
            own = {"qpdsl.row": event.instance, "qpdsl.baseline": event.baseline, **self._seed}
            self._rows[event.instance, event.baseline] = self._workflow(self._program, event.at, own)
        elif isinstance(event, OperatorDone):
            self._operator(event)
        elif isinstance(event, ToolCalled):
            self._tool(event)
        elif isinstance(event, InstanceDone):
            self._row(event)
        elif isinstance(event, RowDone):
            self._answers.add(1, {"correct": str(event.correct).lower()})
        elif isinstance(event, CellReached):
            self._cell(event)
        elif isinstance(event, RequestReached):
            self._request(event)

    def end(self) -> None:
        """Ends the spans of what did not."""
        for span in (*self._rows.values(), *self._cells.values(), *(span for span, _ in self._requests.values())):
            if span.is_recording():
                span.end()

    def _workflow(self, name: str, at: float, more: Mapping[str, Any]) -> Any:
        about = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.workflow.name": name,
        }
        start = self._time(at)
        return self._tracer.start_span(f"invoke_workflow {name}", start_time=start, attributes={**about, **more})

    def _parent(self, instance: str, baseline: bool) -> tuple[Any, _Plan | None]:
        """The span that something of an instance is in, and the plan that it is of; None where that is not known."""
        row = self._rows.get((instance, baseline))
        if row is not None or self._program:
            return row, self._plan
        span, program = self._requests.get(instance.rpartition(" ")[0], (None, ""))
        return span, self._plans.get(program)

    def _inside(self, parent: Any, name: str, at: float, seconds: float, about: Mapping[str, Any], kind: str) -> Any:
        """A span that began so long before, in another one where there is one."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        context, begun = None if parent is None else set_span_in_context(parent), self._time(at - seconds)
        return self._tracer.start_span(name, context, SpanKind[kind], start_time=begun, attributes=about)

    def _operator(self, event: OperatorDone) -> None:
        parent, plan = self._parent(event.instance, event.baseline)
        if plan is None or event.operator in plan.around or not (event.prompt_tokens or event.sampled_tokens):
            return
        operation, model = plan.asks(event.operator)
        kinds = {"gen_ai.operation.name": operation, "gen_ai.provider.name": _PROVIDER, "gen_ai.request.model": model}
        usage = {
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.output_tokens": event.sampled_tokens,
            "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
        }
        place = {"qpdsl.operator": event.operator, "qpdsl.rounds": event.rounds, **self._seed}
        about = {**kinds, **usage, **place, "gen_ai.request.choice.count": event.rows_out}
        name = f"{operation} {model}".rstrip()
        self._inside(parent, name, event.at, event.seconds, about, "CLIENT").end(self._time(event.at))
        self._seconds.record(event.seconds, kinds)
        self._count_tokens(event, kinds)

    def _tool(self, event: ToolCalled) -> None:
        parent, _ = self._parent(event.instance, baseline=False)
        about = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.tool.name": event.tool,
            "qpdsl.operator": event.operator,
            "qpdsl.made": event.made,
        }
        span = self._inside(parent, f"execute_tool {event.tool}", event.at, event.seconds, about, "INTERNAL")
        if event.failed:
            _fail(span, "tool_failed")
        span.end(self._time(event.at))

    def _row(self, event: InstanceDone) -> None:
        span = self._rows.pop((event.instance, event.baseline), None)
        if span is None:
            return
        span.set_attribute("gen_ai.usage.input_tokens", event.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", event.sampled_tokens)
        if event.score is not None:
            span.set_attribute("gen_ai.evaluation.score.value", event.score)
        if event.error is not None:
            _fail(span, event.error)
        span.end(self._time(event.at))

    def _cell(self, event: CellReached) -> None:
        if event.cell not in self._cells:
            self._cells[event.cell] = self._workflow(event.cell, event.at, {"qpdsl.rows": event.rows})
        span = self._cells[event.cell]
        if event.done < event.rows or not span.is_recording():
            return
        judged = {"qpdsl.right": event.right, "qpdsl.judged": event.judged, "qpdsl.failed": event.failed}
        span.set_attributes({**judged, "gen_ai.usage.output_tokens": event.sampled_tokens})
        if event.judged:
            accuracy = {"gen_ai.evaluation.name": "accuracy"}
            span.set_attributes({**accuracy, "gen_ai.evaluation.score.value": event.right / event.judged})
        self._answers.add(event.right, {"correct": "true", "cell": event.cell})
        self._answers.add(event.judged - event.right, {"correct": "false", "cell": event.cell})
        span.end(self._time(event.at))

    def _request(self, event: RequestReached) -> None:
        operation = "chat" if event.request.startswith("chat") else "text_completion"
        about = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.request.model": event.program,
        }
        if event.request not in self._requests:
            named = {**about, "gen_ai.response.id": event.request}
            span = self._inside(None, f"{operation} {event.program}", event.at, event.seconds, named, "SERVER")
            self._requests[event.request] = span, event.program
        if event.status in ("waiting", "running"):
            return
        span, _ = self._requests[event.request]
        self._over.append(event.request)
        if len(self._over) > _MAX_OVER:
            del self._requests[self._over.popleft()]
        if event.status == "answered":
            span.set_attribute("gen_ai.usage.input_tokens", event.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", event.sampled_tokens)
            self._count_tokens(event, about)
        else:
            about["error.type"] = event.status
            _fail(span, event.status)
        self._served.record(event.seconds, about)
        span.end(self._time(event.at))

    def _count_tokens(self, event: OperatorDone | RequestReached, about: Mapping[str, Any]) -> None:
        for kind, tokens in (("input", event.prompt_tokens), ("output", event.sampled_tokens)):
            self._tokens.record(tokens, {**about, "gen_ai.token.type": kind})

    def _time(self, at: float) -> int:
        return int((self._zero + at) * 1e9)


def _fail(span: Any, why: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, why)


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
