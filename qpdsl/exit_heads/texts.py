"""The texts that heads are fitted to: plain files, or one field of each line of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

from qpdsl.errors import DataError, reason, shorten
from qpdsl.executor.foreign.bounded_file import read_bounded

_LINES = ".jsonl"
# All of it is held in memory, and more.
_MAX_BYTES = 1 << 30


def read_texts(path: Path, field: str | None) -> list[str]:
    """The texts of a file: the whole file, or with a `field` that field of every line, which is JSON.

    Raises DataError where the file cannot be read, is no text, or a line lacks the field.
    """
    try:
        text = read_bounded(path, _MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"`{path}` is no text in UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read the text `{path}`: {reason(error)}") from error
    if field is None:
        if path.suffix.lower() == _LINES:
            raise DataError(f"`{path}` holds JSON lines", "`--field NAME` says which field is the text")
        return [text]
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return [_field(path, number, line, field) for number, line in lines]


def _field(path: Path, number: int, line: str, field: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: this is no JSON", "without `--field` a file is plain text") from error
    if not isinstance(row, dict) or field not in row:
        there = f"; it has: {', '.join(map(shorten, row))}" if isinstance(row, dict) and row else ""
        raise DataError(f"{path}, line {number}: there is no field `{shorten(field)}`{there}")
    if not isinstance(row[field], str):
        raise DataError(f"{path}, line {number}: the field `{shorten(field)}` is no text")
    return str(row[field])
