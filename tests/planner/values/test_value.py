"""Values: records that stay as they are, paths into them, and how they stand in a text."""

from __future__ import annotations

import json
import pickle
from copy import deepcopy
from typing import Any

import pytest

from qpdsl.planner.values.value import Record, format_value, frozen, thawed, value_at

JSON: dict[str, Any] = {"name": "Mia", "tags": ["a", {"n": 1}], "none": None, "ok": True}


def test_a_value_of_json_comes_back_as_it_was() -> None:
    assert thawed(frozen(JSON)) == JSON
    assert json.loads(json.dumps(frozen(JSON))) == JSON
    assert frozen(JSON) == frozen(deepcopy(JSON)) == pickle.loads(pickle.dumps(frozen(JSON)))


def test_a_record_is_a_key_and_is_not_changed() -> None:
    record = frozen(JSON)
    assert isinstance(record, Record)
    assert {record: 1}[frozen(dict(reversed(JSON.items())))] == 1
    for change in (
        lambda: record.update(a=1),
        lambda: record.__setitem__("a", 1),
        lambda: record.pop("name"),
        record.clear,
    ):
        with pytest.raises(TypeError):
            change()
    assert record == JSON | {"tags": ("a", {"n": 1})}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", "é"),
        (True, "true"),
        (None, "none"),
        (1.5, "1.5"),
        (frozen(["é", None, True]), '["é", null, true]'),
        (frozen({"a": [1]}), '{"a": [1]}'),
    ],
)
def test_values_in_a_text(value: Any, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (("tags", 1, "n"), 1),
        (("tags", -1, "n"), 1),
        (("tags", 2), None),
        (("tags", -3), None),
        (("tags", "n"), None),
        (("missing", "n", 0), None),
        (("name", 0), None),
        ((0,), None),
    ],
)
def test_what_stands_at_a_path(steps: tuple[str | int, ...], value: Any) -> None:
    assert value_at(frozen(JSON), steps) == value
