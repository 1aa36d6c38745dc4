"""Tables as text: CSV, with commas or semicolons, and TSV. The first record names the fields."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence

from qpdsl.errors import DataError, shorten
from qpdsl.inputs.formats.data_record import DataRecord, RecordSet

_KINDS = {",": "CSV", "\t": "TSV", ";": "CSV with semicolons"}
_LONGEST_CELL = 64 << 20


def separator_of(text: str) -> str | None:
    """What parts the cells of a table; None where the text looks like none.

    A table has two records at least, of the same width, which is two or more.
    """
    found = {separator: width for separator in _KINDS if (width := _width(text, separator)) > 1}
    return max(found, key=found.__getitem__) if found else None


def read_delimited(name: str, text: str, separator: str) -> RecordSet:
    """The records of a table, each at the line where it begins. All cells are texts; an empty one is no field.

    Raises DataError where the header cannot be used.
    """
    lines = _records(text, separator)
    try:
        _, header = next(lines, (0, []))
    except csv.Error as error:
        raise DataError(f"{name}:1: {_words(error)}") from error
    header = [column.strip() for column in header]
    _check_header(name, header)
    records: list[DataRecord] = []
    faults: list[tuple[int, str]] = []
    try:
        for line, cells in lines:
            if len(cells) == len(header):
                pairs = zip(header, cells, strict=True)
                records.append(DataRecord(line, {column: cell for column, cell in pairs if cell.strip()}))
            else:
                cell_count = f"{len(cells)} cell{'s' * (len(cells) != 1)}"
                faults.append((line, f"{cell_count}, where the header names {len(header)} fields"))
    except csv.Error as error:
        faults.append((records[-1].number + 1 if records else 2, _words(error)))
    return RecordSet(_KINDS[separator], "line", tuple(records), tuple(faults), is_text=True)


def _width(text: str, separator: str) -> int:
    records = _records(text, separator)
    try:
        first, second = next(records, (0, []))[1], next(records, (0, []))[1]
    except csv.Error:
        return 0
    return len(first) if len(first) == len(second) and all(cell.strip() for cell in first) else 0


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Records that are not blank, each with the line where it begins. Raises csv.Error."""
    # The limit is the module's, for all readers; nobody is harmed by a higher one.
    csv.field_size_limit(max(_LONGEST_CELL, csv.field_size_limit()))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield line, cells
        line = reader.line_num + 1


def _check_header(name: str, header: Sequence[str]) -> None:
    if not header:
        raise DataError(f"{name}: the file is empty, it holds no row")
    empty = [number for number, column in enumerate(header, 1) if not column]
    if empty:
        raise DataError(f"{name}:1: column {empty[0]} has no name", "the first line of a table names its columns")
    twice = [column for column, count in Counter(header).items() if count > 1]
    if twice:
        raise DataError(f"{name}:1: two columns are called `{shorten(twice[0])}`")


def _words(error: csv.Error) -> str:
    return f"broken table: {error}"
