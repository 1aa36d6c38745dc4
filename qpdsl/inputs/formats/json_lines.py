"""JSON lines: an object a line. Blank lines are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qpdsl.errors import shorten
from qpdsl.inputs.formats.data_record import DataRecord, RecordSet
from qpdsl.inputs.formats.json_objects import json_value

JSON_LINES = "JSON lines"


def read_json_lines(data: bytes) -> RecordSet:
    """The records of a file without its byte-order mark, with a fault for each line that is no object."""
    records: list[DataRecord] = []
    faults: list[tuple[int, str]] = []
    for number, line in _lines(data):
        try:
            records.append(DataRecord(number, _object(line)))
        except ValueError as error:
            faults.append((number, str(error)))
    return RecordSet(JSON_LINES, "line", tuple(records), tuple(faults))


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers."""
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line


def _object(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"the line is not UTF-8 text (byte {error.start + 1})") from error
    if text.startswith("\ufeff"):
        raise ValueError("the line begins with a byte-order mark, which stands at the start of a file only")
    value = json_value(text)
    if not isinstance(value, dict):
        raise ValueError(f"the line must be a JSON object, not `{shorten(text.strip(), 40)}`")
    return value
