"""Spans and metrics of a run, as OpenTelemetry's own exporters in memory have them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from qpdsl.errors import UsageError
from qpdsl.executor.events.events import (
    CellReached,
    Event,
    InstanceDone,
    InstanceStarted,
    OperatorDone,
    RequestReached,
    RunStarted,
    ToolCalled,
)
from qpdsl.executor.events.stream import EventStream
from qpdsl.session.telemetry import Plans, exported, is_wanted, told


def told_of(events: Sequence[Event], plans: Plans | None = None) -> tuple[list[Any], dict[tuple[str, str | None], Any]]:
    """The spans that are over once all was told, in this order, and each metric's sums by what it counts."""
    pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'qpdsl[otel]'")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    stream, spans, metrics = EventStream(), InMemorySpanExporter(), InMemoryMetricReader()
    end = told(stream, SimpleSpanProcessor(spans), metrics, plans)
    for event in events:
        stream.emit(event)
    data = metrics.get_metrics_data()
    end()
    found = [scope for own in (data.resource_metrics if data else ()) for scope in own.scope_metrics]
    sums = {
        (metric.name, point.attributes.get("gen_ai.token.type") or point.attributes.get("correct")): getattr(
            point, "sum", None
        )
        or point.value
        for scope in found
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    return list(spans.get_finished_spans()), sums


PLAN = {
    "models": {"llm": "zoo/counting"},
    "operators": [
        {"id": "1", "operator": "Generate", "text": "generate llm n=2"},
        {"id": "5", "operator": "Repeat", "text": "repeat 2", "body": [{"id": "5.0", "operator": "Generate"}]},
    ],
}
COUNTS = {"rows_in": 1, "rows_out": 2, "prompt_tokens": 5, "sampled_tokens": 9}


def test_a_row_is_a_workflow_with_the_requests_in_it() -> None:
    how = {"rows": 1, "seed": 7, "device": "cpu", "concurrency": 1, "pid": 1, "wall": 0.0, "version": "0"}
    none = {"rows_in": 2, "rows_out": 1, "prompt_tokens": 0, "sampled_tokens": 0}
    spans, sums = told_of(
        [
            RunStarted(at=10.0, program="p", plan=PLAN, **how),
            InstanceStarted(at=10.0, instance="a"),
            OperatorDone(at=12.0, instance="a", operator="1", seconds=1.5, **COUNTS),
            OperatorDone(at=12.0, instance="a", operator="2", seconds=0.0, **none),
            # What a loop counts, its operators do.
            OperatorDone(at=12.0, instance="a", operator="5", seconds=2.0, **COUNTS),
            ToolCalled(at=12.5, instance="a", operator="3", tool="search", seconds=0.5, failed=True),
            InstanceStarted(at=12.0, instance="b"),
            InstanceDone(at=13.0, instance="a", prompt_tokens=5, sampled_tokens=9, seconds=3.0, error="cut off"),
        ]
    )
    request, tool, row, left = spans
    assert [span.name for span in (request, row, left)] == ["chat zoo/counting", *["invoke_workflow p"] * 2]
    assert request.parent is not None and request.parent.span_id == row.context.span_id
    assert request.end_time - request.start_time == 1_500_000_000
    assert row.end_time - row.start_time == 3_000_000_000
    usage = {name: request.attributes[f"gen_ai.usage.{name}"] for name in ("input_tokens", "output_tokens")}
    assert usage == {"input_tokens": 5, "output_tokens": 9}
    assert row.attributes["gen_ai.workflow.name"] == "p" and row.attributes["gen_ai.request.seed"] == 7
    assert row.status.description == "cut off"
    assert (tool.name, tool.attributes["gen_ai.tool.name"]) == ("execute_tool search", "search")
    assert tool.parent.span_id == row.context.span_id and tool.end_time - tool.start_time == 500_000_000
    assert not tool.status.is_ok
    assert sums["gen_ai.client.token.usage", "output"] == 9
    assert sums["gen_ai.client.operation.duration", None] == 1.5


def test_a_request_to_a_server_is_a_chat_with_its_program() -> None:
    def reached(id: str, status: str, at: float, seconds: float, **more: int) -> RequestReached:
        return RequestReached(at=at, request=id, program="p", status=status, seconds=seconds, **more)

    spans, sums = told_of(
        [
            reached("chatcmpl-1", "waiting", 10.5, 0.5),
            reached("chatcmpl-1", "running", 11.0, 1.0),
            InstanceStarted(at=11.0, instance="chatcmpl-1 0"),
            OperatorDone(at=12.0, instance="chatcmpl-1 0", operator="1", seconds=1.0, **COUNTS),
            reached("cmpl-2", "waiting", 11.5, 0.0),
            reached("cmpl-2", "cancelled", 12.0, 0.5),
            reached("chatcmpl-1", "answered", 12.0, 2.0, prompt_tokens=5, sampled_tokens=9),
            # A replica tells of it late.
            OperatorDone(at=11.9, instance="chatcmpl-1 0", operator="1", seconds=0.1, **COUNTS),
        ],
        {"p": PLAN},
    )
    model, gone, request, late = spans
    assert [span.name for span in (model, gone, request)] == ["chat zoo/counting", "text_completion p", "chat p"]
    assert model.parent.span_id == late.parent.span_id == request.context.span_id
    assert (request.kind.name, request.end_time - request.start_time) == ("SERVER", 2_000_000_000)
    assert request.attributes["gen_ai.response.id"] == "chatcmpl-1" and request.status.is_ok
    assert request.attributes["gen_ai.usage.output_tokens"] == 9
    assert gone.status.description == "cancelled"
    assert sums["gen_ai.server.request.duration", None] > 0


def test_a_cell_of_a_sweep_is_a_workflow_with_its_accuracy() -> None:
    spans, sums = told_of(
        [
            CellReached(at=10.0, cell="p(n=2)", rows=4, done=0),
            CellReached(at=10.0, cell="p(n=4)", rows=4, done=0),
            # Cells run rows of the same names, which nothing tells apart.
            InstanceStarted(at=10.0, instance="a"),
            CellReached(at=12.0, cell="p(n=2)", rows=4, done=4, right=3, judged=4, sampled_tokens=80),
            CellReached(at=13.0, cell="p(n=2)", rows=4, done=4, right=3, judged=4, sampled_tokens=80),
        ]
    )
    cell, left = spans
    assert (cell.name, left.name) == ("invoke_workflow p(n=2)", "invoke_workflow p(n=4)")
    assert cell.end_time - cell.start_time == 2_000_000_000
    assert (cell.attributes["gen_ai.evaluation.score.value"], cell.attributes["qpdsl.rows"]) == (0.75, 4)
    assert cell.attributes["gen_ai.usage.output_tokens"] == 80 and (
        sums["qpdsl.rows", "true"],
        sums["qpdsl.rows", "false"],
    ) == (3, 1)


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
