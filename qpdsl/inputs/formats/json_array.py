"""A JSON array of objects."""

from __future__ import annotations

import json

from qpdsl.errors import DataError, shorten
from qpdsl.inputs.formats.data_record import DataRecord, RecordSet
from qpdsl.inputs.formats.json_objects import json_value


def read_json_array(name: str, data: bytes) -> RecordSet:
    """The records of a file without its byte-order mark. Raises DataError where it is no array."""
    try:
        values = json_value(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: the file is not UTF-8 text (byte {error.start + 1})") from error
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    if not isinstance(values, list):
        raise DataError(f"{name}: this is one JSON value, not an array of objects")
    records: list[DataRecord] = []
    faults: list[tuple[int, str]] = []
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            records.append(DataRecord(number, value))
        else:
            text = shorten(json.dumps(value, ensure_ascii=False), 40)
            faults.append((number, f"an item of the array must be an object, not `{text}`"))
    return RecordSet("a JSON array", "row", tuple(records), tuple(faults))
