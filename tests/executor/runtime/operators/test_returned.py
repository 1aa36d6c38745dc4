"""What a program gives back: a value, or the record in a JSON text."""

from __future__ import annotations

from typing import Any

import pytest

from qpdsl.executor.engine.engine import Engine
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Services
from qpdsl.executor.runtime.operators.relational import returned
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops

NOWHERE = Span(0, 0)
OP = ops.Return(stage=0, span=NOWHERE, value=ast.Name("text", span=NOWHERE), parse=True)


def given_back(text: str | None, *, incomplete: bool = False) -> Any:
    row = Row(None, (), {"text": text}, Generated(incomplete=incomplete))
    return returned(OP, (row,), Instance("", Services(Engine(), {}, {}, EventStream()), {}, 0, b""))


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ('{"a": [1, 2.5, null], "b": {"c": "é"}}', {"a": [1, 2.5, None], "b": {"c": "é"}}),
        ('{"a": "x\\ud800", "\\ude00": 1}', {"a": "x?", "?": 1}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
    ],
)
def test_a_record_is_read_as_json_that_can_be_written_again(text: str, record: object) -> None:
    assert given_back(text) == record


@pytest.mark.parametrize(
    ("text", "incomplete", "reason"),
    [
        ("{", False, "what is to be returned is no JSON: "),
        ('{"a": 1e999}', False, "what is to be returned is no JSON: the number 1e999 is too large"),
        ("1" * 5000, False, "what is to be returned is no JSON: "),
        ("[" * 200_000, False, "what is to be returned is no JSON: "),
        ("12", True, "the output was cut off before the record in it was whole"),
        (None, False, "no row has a value to return"),
    ],
)
def test_a_row_without_a_record_fails(text: str | None, incomplete: bool, reason: str) -> None:
    with pytest.raises(RowError) as error:
        given_back(text, incomplete=incomplete)
    assert str(error.value).startswith(reason)
