"""Records as answers: compared as JSON values, shown as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from qpdsl.dataset.json_values import plain, shown
from qpdsl.dataset.row_outcome import same_answer


@pytest.mark.parametrize(
    ("value", "reference", "same"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1.0}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": None}, {}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": {"b": {"c": []}}}, {"a": {"b": {"c": []}}}, True),
        ('{"a": 1}', {"a": 1}, True),
        ("no JSON", {"a": 1}, False),
        ("[" * 100_000, {"a": 1}, False),
        (None, {}, False),
        (3, {}, False),
        ({"a": 1}, '{"a": 1}', True),
        ({"a": 1}, "a", False),
    ],
)
def test_records_are_compared_as_json(value: Any, reference: Any, same: bool) -> None:
    assert same_answer(value, reference) is same


def test_numbers_in_records_are_rounded_as_others() -> None:
    record = {"a": 0.123456789, "b": [1.0, float("inf")], "c": {"d": True}}
    assert plain(record) == {"a": 0.12346, "b": [1.0, "inf"], "c": {"d": True}}
    assert shown(record) == '{"a": 0.12346, "b": [1.0, "inf"], "c": {"d": true}}'
