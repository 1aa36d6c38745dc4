"""Files of data as records, whatever their format: JSON lines, JSON, CSV and TSV, Parquet.

`read_records` detects the format of a file, by what it holds before what it is called. A reader knows no program: it
returns what a file holds, with every fault of it by its place. A file that is no data of a known format raises
DataError.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal

from qpdsl.errors import DataError, UsageError, installing, shorten

JSON_LINES = "JSON lines"
_KINDS = {",": "CSV", "\t": "TSV", ";": "CSV with semicolons"}
_LONGEST_CELL = _LONGEST_LINE = 64 << 20
# Data shrinks to a tenth, or a fiftieth where it repeats itself. What shrinks more, and is large, is a bomb.
_MOST_SHRUNK = 200
_SMALL = 64 << 20
_MOST_BLANK = 1_000_000
_LINE_START = re.compile(rb"\S")
HOW = "JSON lines, JSON arrays, CSV, TSV and Parquet are read, as they are or gzipped"
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
# What files begin with that are not read.
_OTHERS = {
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"PK\x03\x04": "a zip file",
    b"SQLite format 3\0": "an SQLite database",
}


@dataclass(frozen=True, slots=True)
class DataRecord:
    """One record. `number` is its place in the file, from 1: its line, or its rank where the format has no lines.

    `fields` are JSON values. A field without a value (a null of Parquet, an empty cell) is not there.
    """

    number: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordSet:
    """The records of a file in order, and `faults`: a place and what is wrong there.

    `kind` names the format in messages, `unit` what `number` counts. Where `is_text`, the format has texts alone, and a
    value has yet to be read out of each. `left_out` names fields that hold nothing that a program can use.
    """

    kind: str
    unit: Literal["line", "row"]
    records: tuple[DataRecord, ...]
    faults: tuple[tuple[int, str], ...] = ()
    is_text: bool = False
    left_out: tuple[str, ...] = ()


class NoPlainValue(ValueError):
    """What JSON has no value for: bytes, an image, a sound."""


def plain_fields(record: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    """The fields of a record that have a value. Those that have none in JSON are named in `left_out` instead."""
    fields = {}
    for name, value in record.items():
        try:
            plain = _plain(value)
        except NoPlainValue:
            left_out.add(name)
            continue
        if plain is not None:
            fields[name] = plain
    return fields


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_plain(part) for part in value]
        case Mapping():
            # A struct has every field of its type, so that those a record lacks are nulls.
            parts = {str(name): _plain(part) for name, part in value.items()}
            return {name: part for name, part in parts.items() if part is not None}
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
    raise NoPlainValue


def json_value(text: str) -> Any:
    """The value that a text holds. Raises ValueError with what is wrong with it."""
    try:
        return json.loads(text, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(
            f"broken JSON at {line}column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        ) from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its fields. Of two with one name JSON readers drop either, in silence."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the field `{shorten(twice)}` stands twice in one object")
    return fields


def _no_constant(word: str) -> None:
    raise ValueError(f"broken JSON: `{word}` is no JSON value")


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number of {len(digits.lstrip('-')):,} digits is too long") from None


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
    number, end = 1, 0
    while (found := _LINE_START.search(data, end)) is not None:
        number += data.count(b"\n", end, found.start())
        start = data.rfind(b"\n", end, found.start()) + 1 or end
        end = data.find(b"\n", found.start())
        end = len(data) if end < 0 else end
        yield number, data[start:end]


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"the line is longer than {_LONGEST_LINE >> 20} MiB")
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
    line, blank = 1, 0
    for cells in reader:
        blank += 1
        if any(cell.strip() for cell in cells):
            blank = 0
            yield line, cells
        elif blank > _MOST_BLANK:
            raise csv.Error(f"more than {_MOST_BLANK:,} blank lines follow one another")
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


def read_parquet(name: str, data: bytes) -> RecordSet:
    """The rows of a Parquet file. Raises DataError, and UsageError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(f"{name}: Parquet files need pyarrow", installing("data")) from error
    try:
        # In one thread: the rows are few, and threads of a library outlive the reading.
        rows = pq.read_table(pa.BufferReader(data), use_threads=False).to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        # The last two: texts that are no UTF-8, and times that Python has no value for.
        words = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{name}: broken Parquet file: {words}") from error
    left_out: set[str] = set()
    records = tuple(DataRecord(number, plain_fields(row, left_out)) for number, row in enumerate(rows, 1))
    return RecordSet("Parquet", "row", records, left_out=tuple(sorted(left_out)))


def read_records(name: str, data: bytes) -> RecordSet:
    """The records in the bytes of a file called `name`. Raises DataError, and UsageError without a needed library."""
    if data.startswith(_GZIP):
        data = _unpacked(name, data)
        name = name.removesuffix(".gz")
    for begin, words in _OTHERS.items():
        if data.startswith(begin):
            raise DataError(f"{name}: this is {words}, which is not read", HOW)
    if data.startswith(_PARQUET):
        return read_parquet(name, data)
    if b"\0" in data:
        raise DataError(f"{name}: this is a binary file of an unknown kind", HOW)
    return _read_text(name, data.removeprefix(_BOM))


def _unpacked(name: str, data: bytes) -> bytes:
    """What a gzip file holds. Raises DataError where it is broken, or so much larger that it is no data."""
    parts: list[bytes] = []
    size = 0
    try:
        with gzip.open(io.BytesIO(data)) as file:
            while part := file.read(1 << 20):
                parts.append(part)
                size += len(part)
                if size > max(_SMALL, _MOST_SHRUNK * len(data)):
                    raise DataError(
                        f"{name}: the gzip file unpacks to more than {_MOST_SHRUNK} times its size",
                        "if it is data all the same, unpack it first",
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}: broken gzip file: {error}") from error
    return b"".join(parts)


def _read_text(name: str, data: bytes) -> RecordSet:
    text = data.decode("utf-8", errors="replace")
    start = text.lstrip()
    if start.startswith("{"):
        if len(start) > _LONGEST_LINE and start.find("\n", 0, _LONGEST_LINE + 1) < 0:
            raise DataError(f"{name}: the first record is longer than {_LONGEST_LINE >> 20} MiB", "a record is a line")
        _check_one_a_line(name, start)
        return read_json_lines(data)
    if start.startswith("["):
        first, _, rest = start.partition("\n")
        lines = _ends_at(first) is not None and rest.strip()
        return read_json_lines(data) if lines else read_json_array(name, data)
    separator = separator_of(start)
    if separator is None and name.endswith((".csv", ".tsv")):
        separator = "\t" if name.endswith(".tsv") else ","
    if separator is None:
        return read_json_lines(data)
    try:
        return read_delimited(name, data.decode("utf-8"), separator)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: the table is not UTF-8 text", "save it as UTF-8") from error


def _check_one_a_line(name: str, text: str) -> None:
    """Raises DataError where the first object goes over several lines."""
    first, _, _ = text.partition("\n")
    end = _ends_at(text)
    if end is not None and end > len(first):
        message = f"{name}: the JSON objects here go over several lines each"
        raise DataError(message, "write one object a line, or an array of objects")


def _ends_at(text: str) -> int | None:
    """Where the JSON value ends that a text begins with; None where there is none."""
    try:
        return json.JSONDecoder(parse_int=float).raw_decode(text)[1]
    except (ValueError, RecursionError):
        return None
