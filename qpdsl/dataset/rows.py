"""The rows of a data set: JSON lines with the arguments of one run each, all read and checked before anything runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qpdsl.arguments import ArgumentError, bind, from_json
from qpdsl.errors import DataError, reason, shorten
from qpdsl.planner.plan.evaluate import Value, format_value
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.stage_options import check_options

MAX_FINDINGS = 10
Reference = str | dict[str, Any]


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row to run. `reference` is the right answer, where the data has one: a text, a number's text, or a record."""

    id: str
    arguments: Mapping[str, Value]
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class InputData:
    """All rows in order, and a digest of the bytes that they were read from."""

    rows: tuple[InputRow, ...]
    digest: str


def read_rows(path: Path | None, plan: PhysicalPlan, defaults: Mapping[str, Value]) -> InputData:
    """Reads JSON lines, each the arguments of one run of `plan`; a `path` of None means standard input.

    `defaults` are the values of parameters that a row does not set. Raises DataError.
    """
    name = "standard input" if path is None else str(path)
    try:
        with open(0, "rb", closefd=False) if path is None else path.open("rb") as file:
            data = file.read()
    except OSError as error:
        raise DataError(f"cannot read the input data `{name}`: {reason(error)}") from error
    rows: list[InputRow] = []
    findings: list[str] = []
    first_lines: dict[str, int] = {}
    for number, line in _lines(name, data):
        try:
            row = _row(number, line, plan, defaults)
            if row.id in first_lines:
                raise ValueError(f"the id `{shorten(row.id)}` stands on line {first_lines[row.id]} already")
            first_lines[row.id] = number
            rows.append(row)
        except ValueError as error:
            findings.append(f"{name}:{number}: {error}")
    if findings:
        rest = len(findings) - MAX_FINDINGS
        more = [f"{name}: {rest} more lines with errors" if rest > 1 else findings[-1]] if rest > 0 else []
        raise DataError("\n".join(findings[:MAX_FINDINGS] + more))
    if not rows:
        raise DataError(f"{name}: the file is empty, it holds no row")
    return InputData(tuple(rows), blake2b(data, digest_size=16).hexdigest())


def _lines(name: str, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers."""
    if b"\0" in data:
        raise DataError(f"{name}: this is a binary file, not JSON lines")
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield number, line


def _row(number: int, line: bytes, plan: PhysicalPlan, defaults: Mapping[str, Value]) -> InputRow:
    """Raises ValueError with what is wrong with the line."""
    fields = _object(line)
    params = plan.params
    own = {param.name: from_json(param, fields[param.name]) for param in params if param.name in fields}
    try:
        arguments = bind(params, {**defaults, **own})
    except ArgumentError as error:
        near = f"; the fields here are {', '.join(f'`{shorten(name, 24)}`' for name in list(fields)[:8])}"
        raise ArgumentError(f"{error}{near if fields else ''}") from error
    check_options(plan, arguments)
    is_reference = "answer" in fields and all(param.name != "answer" for param in params)
    return InputRow(_id(fields, number), arguments, _reference(fields["answer"]) if is_reference else None)


def _object(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"the line is not UTF-8 text (byte {error.start + 1})") from error
    try:
        value = json.loads(text, parse_int=_whole, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"broken JSON at column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}") from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"the line must be a JSON object, not `{shorten(text.strip(), 40)}`")
    return value


def _no_constant(word: str) -> None:
    raise ValueError(f"broken JSON: `{word}` is no JSON value")


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number of {len(digits.lstrip('-')):,} digits is too long") from None


def _id(fields: Mapping[str, Any], number: int) -> str:
    match fields.get("id"):
        case None:
            return str(number)
        case bool() | float() | list() | dict():
            raise ValueError("`id` must be text or a whole number")
        case "":
            raise ValueError("`id` is empty")
        case id_:
            return _text(str(id_), "id")


def _reference(value: object) -> Reference | None:
    match value:
        case None:
            return None
        case float() if not math.isfinite(value):
            raise ValueError("`answer` is too large a number")
        case str() | int() | float():
            return _text(format_value(value), "answer")
        case dict():
            return value
    raise ValueError("`answer` must be text, a number or an object")


def _text(text: str, field: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"`{field}` holds half of a surrogate pair, which is no text")
    return text
