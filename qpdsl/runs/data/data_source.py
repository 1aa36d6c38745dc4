"""Where data comes from: a file, a folder, a data set on the hub, or standard input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qpdsl.arguments import plain_value
from qpdsl.errors import DataError, UsageError, reason
from qpdsl.planner.values.value import dumps
from qpdsl.runs.data.datasets_library import HUB, HubName, read_folder, read_hub
from qpdsl.runs.data.records import DataRecord, RecordSet, read_records
from qpdsl.session.programs import input_path, shipped_name

# None means standard input.
DataSource = Path | HubName | None


@dataclass(frozen=True, slots=True)
class LoadedData:
    """All records of some data. `name` is what messages call it, `digest` is one of what it was read from."""

    name: str
    records: RecordSet
    digest: str

    @property
    def fields(self) -> list[str]:
        """The names of all fields, in the order in which they come."""
        return list(dict.fromkeys(field for record in self.records.records for field in record.fields))


def data_source(name: str) -> DataSource:
    """What a name means: a file or folder, a data set of the hub, shipped problems, or with `-` standard input.

    Raises DataError where there is no such thing, and UsageError.
    """
    return HubName.of(name) if name.startswith(HUB) else input_path(name)


def load(source: DataSource, split: str | None) -> LoadedData:
    """Reads data; `split` is one of a folder or of a data set on the hub. Raises DataError and UsageError."""
    if isinstance(source, HubName):
        records = read_hub(source, split)
        return LoadedData(f"{HUB}{source.repository}", records, _digest_of(records))
    name = "standard input" if source is None else shipped_name(source) or str(source)
    if source is not None and source.is_dir():
        records = read_folder(source, split)
        return LoadedData(name, records, _digest_of(records))
    if split is not None:
        raise UsageError("`--split` is for folders and data sets of the hub; a file has no splits")
    try:
        with open(0, "rb", closefd=False) if source is None else source.open("rb") as file:
            data = file.read()
    except OSError as error:
        raise DataError(f"cannot read the input data `{name}`: {reason(error)}") from error
    return LoadedData(name, read_records(name, data), blake2b(data, digest_size=16).hexdigest())


def given(rows: Iterable[Mapping[str, Any]], name: str = "rows") -> LoadedData:
    """Rows of Python as data, under a name for messages; fields that are None are not there.

    Raises DataError where one is no mapping, or has what JSON cannot have.
    """
    records: list[DataRecord] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"{name}: row {number} is of type {type(row).__name__}, not a mapping of its fields")
        try:
            fields = {str(field): plain_value(value) for field, value in row.items() if value is not None}
            dumps(fields).encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{name}: row {number} holds half of a surrogate pair, which is no text") from error
        except RecursionError as error:
            raise DataError(f"{name}: row {number} is nested too deep, or in itself") from error
        except (TypeError, ValueError) as error:
            raise DataError(f"{name}: row {number} has a value that is not JSON: {error}") from error
        records.append(DataRecord(number, fields))
    found = RecordSet("Python", "row", tuple(records))
    return LoadedData(name, found, _digest_of(found))


def _digest_of(data: RecordSet) -> str:
    digest = blake2b(digest_size=16)
    for record in data.records:
        digest.update(dumps(record.fields).encode() + b"\n")
    return digest.hexdigest()
