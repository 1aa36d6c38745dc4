"""Records as a file for other programs: JSON lines, a JSON array, CSV or Parquet, as the ending of its name says; or as
a folder that the library `datasets` loads.

In CSV a text that a spreadsheet would take for a formula gets an apostrophe before it, as OWASP ("CSV Injection")
recommends: what models write is foreign text. Numbers stay as they are, and the other formats keep every text.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from qpdsl.errors import UsageError, installing
from qpdsl.planner.values.value import NUMBER, dumps

LINES, ARRAY, CSV, PARQUET, FOLDER = FORMATS = ("jsonl", "json", "csv", "parquet", "hf")
ENDINGS = {".jsonl": LINES, ".ndjson": LINES, ".json": ARRAY, ".csv": CSV, ".parquet": PARQUET}
# Endings of formats that are not written. Under any other name a file has JSON lines.
UNWRITTEN = (
    ".tsv",
    ".xls",
    ".xlsx",
    ".ods",
    ".arrow",
    ".feather",
    ".gz",
    ".bz2",
    ".xz",
    ".zst",
    ".zip",
    ".sqlite",
    ".db",
)
# Those of other texts, which a format that was asked for may have.
OTHER_TEXTS = (".yaml", ".yml", ".xml", ".html", ".md", ".txt")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MAGIC = b"PAR1"


def record_format(name: str, asked: str | None = None) -> str:
    """The format of a file of this name: that of its ending, else the one that was `asked` for, else JSON lines.

    Raises UsageError where the ending is of another format than was asked for, or of one that is not written, and
    where Parquet needs what is not installed.
    """
    ending = Path(name).suffix.lower()
    if ending in UNWRITTEN or (asked is None and ending in OTHER_TEXTS):
        raise UsageError(f"`{name}`: no `{ending}` file is written", f"endings are {', '.join(ENDINGS)}")
    form = ENDINGS.get(ending, asked or LINES)
    if asked not in (None, form):
        raise UsageError(
            f"`--format {asked}` is not the format of `{name}`", "give another name, or leave out `--format`"
        )
    if form == PARQUET:
        _pyarrow()
    if form == FOLDER:
        _datasets()
    return form


def text_lines(records: Sequence[Mapping[str, Any]], form: str) -> Iterator[str]:
    """The lines of a file of records in a format that is text. Columns of CSV are in the order in which fields come."""
    if form == LINES:
        yield from map(dumps, records)
    elif form == ARRAY:
        yield "["
        yield from (dumps(record) + "," * (number < len(records)) for number, record in enumerate(records, 1))
        yield "]"
    else:
        columns = _columns(records)
        yield _csv_line(columns)
        yield from (_csv_line([record.get(name) for name in columns]) for record in records)


def parquet_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    """The same records as a Parquet file. A column of more than one kind of value, or of records, is JSON text.

    Raises UsageError without pyarrow.
    """
    pa, pq = _pyarrow()
    columns = {name: [record.get(name) for record in records] for name in _columns(records)}
    file = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(_of_one_kind(values)) for name, values in columns.items()}), file)
    return file.getvalue()


def nested_parquet_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    """The same with lists and records as such, as the library `datasets` and trainers read them.

    Raises UsageError without pyarrow, and where the fields of records are of several kinds.
    """
    pa, pq = _pyarrow()
    file = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist(list(records)), file)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UsageError(f"these records are no table: {error}", "`.jsonl` takes any") from error
    return file.getvalue()


def write_folder(records: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Writes `FOLDER_FILES` into a folder, for `datasets.load_from_disk`. Raises UsageError without `datasets`."""
    datasets = _datasets()
    made = datasets.Dataset.from_list(list(records), info=datasets.DatasetInfo(description=_DESCRIPTION))
    made.save_to_disk(str(folder), num_shards=1)


def is_exported_folder(file: BinaryIO) -> bool:
    """Whether the first of `FOLDER_FILES` is one that `write_folder` wrote."""
    try:
        return bool(json.load(file).get("description") == _DESCRIPTION)
    except (ValueError, AttributeError):
        return False


FOLDER_FILES = ("dataset_info.json", "data-00000-of-00001.arrow", "state.json")
_DESCRIPTION = "exported by qpdsl"


def first_fields(file: BinaryIO) -> Sequence[str]:
    """The names of the fields of the first record of an open file in one of the formats, none where it has none."""
    start = file.read(len(_MAGIC))
    file.seek(0)
    if start == _MAGIC:
        _, pq = _pyarrow()
        try:
            return list(pq.read_schema(file).names)
        except (OSError, ValueError):
            return []
    line = file.readline().rstrip(b"\r\n")
    if line == b"[":
        line = file.readline().rstrip(b"\r\n,")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        try:
            return next(csv.reader([line.decode(errors="replace")]), [])
        except csv.Error:
            return []
    return list(record) if isinstance(record, dict) else []


def _columns(records: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record))


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    # Only what can end a line is quoted, so the writer has to know both signs that do.
    csv.writer(line, lineterminator="\r\n").writerow([_cell(value) for value in values])
    return line.getvalue().removesuffix("\r\n")


def _cell(value: Any) -> Any:
    match value:
        case None:
            return ""
        case bool() | dict() | list() | tuple():
            return dumps(value)
        case str() if value.startswith(_FORMULA) and not NUMBER.fullmatch(value):
            return f"'{value}"
    return value


def _of_one_kind(values: Sequence[Any]) -> Sequence[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    is_plain = len(kinds) <= 1 and kinds <= {bool, int, float, str}
    if is_plain and all(-(1 << 63) <= value < 1 << 63 for value in values if isinstance(value, int)):
        return values
    return [value if value is None or isinstance(value, str) else dumps(value) for value in values]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet files need pyarrow", f"{installing('data')}, or another ending") from error
    return pyarrow, pyarrow.parquet


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UsageError("`--format hf` needs the library `datasets`", installing("data")) from error
    datasets.disable_progress_bars()
    return datasets
