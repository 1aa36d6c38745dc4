"""The check of records against the JSON-Schema-Test-Suite (draft 2020-12), as far as the checker takes its schemas.

`json_schema_suite.json` holds these groups, without `$schema`. Formats assert only beside `"type": "string"`, which is
added to theirs, and their values that are no texts are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import faults, value_type

GROUPS = json.loads(Path(__file__).with_name("json_schema_suite.json").read_text("utf-8"))["groups"]
# Times have no leap second and capital letters, as what a model may write.
_NARROWER = {"optional/format/time.json", "optional/format/date-time.json"}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group['file']}: {group['group']}")
def test_the_check_gives_the_verdict_of_the_suite(group: dict[str, Any]) -> None:
    schema = group["schema"]
    assert list(faults(schema)) == []
    assert isinstance(value_type(schema), str)
    source = json.dumps(schema)
    for what, value, valid in group["tests"]:
        found = fault_of(json.dumps(value), source) is None
        assert found == valid or (valid and group["file"] in _NARROWER), what


def test_llguidance_takes_the_schemas() -> None:
    refused = [group["group"] for group in GROUPS if refusal("json_schema", json.dumps(group["schema"])) is not None]
    assert refused == []
