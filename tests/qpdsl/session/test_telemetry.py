"""Spans and metrics of a run, as OpenTelemetry's own exporters in memory have them."""

from __future__ import annotations

import sys

import pytest

from qpdsl.errors import UsageError
from qpdsl.executor.events.events import InstanceDone, InstanceStarted, OperatorDone, RunStarted
from qpdsl.executor.events.stream import EventStream
from qpdsl.session.telemetry import exported, is_wanted, told


def test_a_row_is_a_workflow_with_the_requests_in_it() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'qpdsl[otel]'")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    stream, spans, metrics = EventStream(), InMemorySpanExporter(), InMemoryMetricReader()
    operators = [{"id": "1", "operator": "Generate", "text": "generate llm n=2"}]
    plan = {"models": {"llm": "zoo/counting"}, "operators": operators}
    how = {"rows": 1, "seed": 7, "device": "cpu", "concurrency": 1, "pid": 1, "wall": 0.0, "version": "0"}
    stream.emit(RunStarted(at=10.0, program="p", plan=plan, **how))
    end = told(stream, SimpleSpanProcessor(spans), metrics)
    stream.emit(InstanceStarted(at=10.0, instance="a"))
    counts = {"rows_in": 1, "rows_out": 2, "prompt_tokens": 5, "sampled_tokens": 9}
    stream.emit(OperatorDone(at=12.0, instance="a", operator="1", seconds=1.5, **counts))
    none = {"rows_in": 2, "rows_out": 1, "prompt_tokens": 0, "sampled_tokens": 0}
    stream.emit(OperatorDone(at=12.0, instance="a", operator="2", seconds=0.0, **none))
    stream.emit(InstanceStarted(at=12.0, instance="b"))
    stream.emit(InstanceDone(at=13.0, instance="a", prompt_tokens=5, sampled_tokens=9, seconds=3.0, error="cut off"))
    data = metrics.get_metrics_data()
    end()
    request, row, left = spans.get_finished_spans()
    assert (request.name, row.name, left.name) == ("chat zoo/counting", "invoke_workflow p", "invoke_workflow p")
    assert request.parent is not None and request.parent.span_id == row.context.span_id
    assert request.end_time - request.start_time == 1_500_000_000
    assert row.end_time - row.start_time == 3_000_000_000
    usage = {name: request.attributes[f"gen_ai.usage.{name}"] for name in ("input_tokens", "output_tokens")}
    assert usage == {"input_tokens": 5, "output_tokens": 9}
    assert row.attributes["gen_ai.workflow.name"] == "p" and row.attributes["gen_ai.request.seed"] == 7
    assert row.status.description == "cut off"
    (scope,) = data.resource_metrics[0].scope_metrics
    sums = {
        (metric.name, str(dict(point.attributes).get("gen_ai.token.type"))): point.sum
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert sums["gen_ai.client.token.usage", "output"] == 9
    assert sums["gen_ai.client.operation.duration", "None"] == 1.5


def test_it_is_off_unless_an_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert not is_wanted(None) and is_wanted("http://localhost:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    assert is_wanted(None)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not is_wanted("http://localhost:4318")


def test_the_environments_endpoint_ends_no_run_for_want_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    exported(EventStream(), None)()
    with pytest.raises(UsageError, match="needs OpenTelemetry's libraries"):
        exported(EventStream(), "http://localhost:4318")
