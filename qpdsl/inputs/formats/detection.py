"""Which format a file has: what it holds tells it, and its name only where that leaves it open."""

from __future__ import annotations

import gzip
import json
import zlib

from qpdsl.errors import DataError
from qpdsl.inputs.formats.data_record import RecordSet
from qpdsl.inputs.formats.delimited import read_delimited, separator_of
from qpdsl.inputs.formats.json_array import read_json_array
from qpdsl.inputs.formats.json_lines import read_json_lines
from qpdsl.inputs.formats.parquet import read_parquet

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


def read_records(name: str, data: bytes) -> RecordSet:
    """The records in the bytes of a file called `name`. Raises DataError, and UsageError without a needed library."""
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{name}: broken gzip file: {error}") from error
        name = name.removesuffix(".gz")
    for begin, words in _OTHERS.items():
        if data.startswith(begin):
            raise DataError(f"{name}: this is {words}, which is not read", HOW)
    if data.startswith(_PARQUET):
        return read_parquet(name, data)
    if b"\0" in data:
        raise DataError(f"{name}: this is a binary file of an unknown kind", HOW)
    return _read_text(name, data.removeprefix(_BOM))


def _read_text(name: str, data: bytes) -> RecordSet:
    text = data.decode("utf-8", errors="replace")
    start = text.lstrip()
    if start.startswith("{"):
        _check_one_a_line(name, start)
        return read_json_lines(data)
    if start.startswith("["):
        first, _, rest = start.partition("\n")
        lines = _ends_at(first) is not None and rest.strip()
        return read_json_lines(data) if lines else read_json_array(name, data)
    separator = separator_of(text)
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
