"""The rows of a data set: JSON lines with the arguments of one run each, all read and checked before anything runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qpdsl.arguments import ArgumentError, bind, from_json
from qpdsl.errors import DataError, reason, shorten
from qpdsl.grammar.suggest import closest
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value, format_value
from qpdsl.stage_options import check_options

MAX_FINDINGS = 10
_BOM = b"\xef\xbb\xbf"
_HOW = "write one JSON object a line, with the program's parameters as its fields"
# What files of other kinds begin with.
_MAGIC = {
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"PK\x03\x04": "a zip file",
    b"PAR1": "a Parquet file",
}
Reference = str | dict[str, Any]


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row to run. `reference` is the right answer, where the data has one: a text, a number's text, or a record."""

    id: str
    arguments: Mapping[str, Value]
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class InputData:
    """All rows in order, and a digest of the bytes that they were read from.

    `notes` say what of the data and of the settings is not used, a line each.
    """

    rows: tuple[InputRow, ...]
    digest: str
    notes: tuple[str, ...] = ()


def read_rows(path: Path | None, plan: PhysicalPlan, settings: Mapping[str, Value]) -> InputData:
    """Reads JSON lines, each the arguments of one run of `plan`; a `path` of None means standard input.

    `settings` are the values of parameters that a row does not set. Raises DataError.
    """
    name = "standard input" if path is None else str(path)
    try:
        with open(0, "rb", closefd=False) if path is None else path.open("rb") as file:
            data = file.read()
    except OSError as error:
        raise DataError(f"cannot read the input data `{name}`: {reason(error)}") from error
    _check_format(name, data)
    rows: list[InputRow] = []
    findings: dict[str, list[int]] = {}
    first_lines: dict[str, int] = {}
    names = _Names([param.name for param in plan.params], plan.models)
    for number, line in _lines(data):
        try:
            fields = _object(line)
            row = _row(number, fields, plan, settings)
            if row.id in first_lines:
                raise ValueError(f"the id `{shorten(row.id)}` stands on line {first_lines[row.id]} already")
            first_lines[row.id] = number
            rows.append(row)
            names.see(number, fields)
        except ValueError as error:
            findings.setdefault(str(error), []).append(number)
    if findings:
        raise DataError("\n".join(_shown(name, findings)))
    if not rows:
        raise DataError(f"{name}: the file is empty, it holds no row")
    return InputData(
        tuple(rows), blake2b(data, digest_size=16).hexdigest(), tuple(names.notes(name, plan.name, settings))
    )


class _Names:
    """The names of fields in the rows, and which of them mean something."""

    def __init__(self, params: Sequence[str], models: Mapping[str, str]) -> None:
        self._params = params
        self._models = models
        self._rows = 0
        self._own = Counter[str]()
        self._unused: dict[str, list[int]] = {}

    def see(self, number: int, fields: Mapping[str, Any]) -> None:
        self._rows += 1
        for field in fields:
            self._own[field] += 1
            if field not in self._params and field not in ("id", "answer"):
                self._unused.setdefault(field, []).append(number)

    def notes(self, name: str, program: str, settings: Mapping[str, Value]) -> Iterator[str]:
        meant = [param for param in self._params if self._own[param] < self._rows]
        if not self._own["answer"]:
            meant.append("answer")
        others = []
        for field, lines in self._unused.items():
            near = closest(field, meant)
            if field in self._models:
                yield (
                    f"warning: {name}:{lines[0]}: `{field}` is a model of `{program}`, which is the same for all rows: "
                    f"`--model {field}=ID`{_again(lines)}"
                )
            elif near is None:
                others.append(f"`{shorten(field, 24)}`")
            else:
                yield (
                    f"warning: {name}:{lines[0]}: `{shorten(field)}` is no parameter of `{program}`; "
                    f"did you mean `{near}`?{_again(lines)}"
                )
        if others:
            are = "are no parameters" if len(others) > 1 else "is no parameter"
            shown = ", ".join(others[:MAX_FINDINGS]) + (" and others" if len(others) > MAX_FINDINGS else "")
            yield f"note: {shown} {are} of `{program}`, and not used"
        for setting in settings:
            if self._own[setting] == self._rows:
                yield f"warning: `--set {setting}=…` has no effect, since every row of the input sets `{setting}`"


def _shown(name: str, findings: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """The first findings, each with the line where it was made first and how often it was made again."""
    for message, lines in list(findings.items())[:MAX_FINDINGS]:
        yield f"{name}:{lines[0]}: {message}{_again(lines)}"
    rest = sum(len(lines) for lines in list(findings.values())[MAX_FINDINGS:])
    if rest:
        yield f"{name}: {rest:,} more line{'s' * (rest > 1)} with errors"


def _again(lines: Sequence[int]) -> str:
    rest = len(lines) - 1
    return f" (and {rest:,} line{'s' * (rest > 1)} more)" if rest else ""


def _check_format(name: str, data: bytes) -> None:
    """Raises DataError, once for the whole file, where it is of another kind than JSON lines."""
    start = data[:4]
    for begin, words in _MAGIC.items():
        if start.startswith(begin):
            raise DataError(f"{name}: this is {words}, not JSON lines", _HOW)
    if b"\0" in data:
        raise DataError(f"{name}: this is a binary file, not JSON lines", _HOW)
    text = data.removeprefix(_BOM).strip().decode("utf-8", errors="replace")
    first, _, rest = text.partition("\n")
    value, end = _first_value(text)
    if isinstance(value, list) and not text[end:].strip():
        raise DataError(f"{name}: this is a JSON array, not JSON lines", _HOW)
    if isinstance(value, dict) and end > len(first):
        raise DataError(f"{name}: the JSON objects here go over several lines each", _HOW)
    if value is not None or first[:1] in ("{", "["):
        return
    for separator, words in ((",", "CSV"), ("\t", "a table with tabs"), (";", "CSV with semicolons")):
        if separator in first and separator in rest.partition("\n")[0]:
            raise DataError(f"{name}: this looks like {words}, not like JSON lines", _HOW)


def _first_value(text: str) -> tuple[object, int]:
    """The JSON value that a text begins with, and where it ends; None where there is none."""
    try:
        return json.JSONDecoder(parse_int=float).raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers."""
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), 1):
        if line.strip():
            yield number, line


def _row(number: int, fields: Mapping[str, Any], plan: PhysicalPlan, settings: Mapping[str, Value]) -> InputRow:
    """Raises ValueError with what is wrong with the line."""
    params = plan.params
    own = {param.name: from_json(param, fields[param.name]) for param in params if param.name in fields}
    try:
        arguments = bind(params, {**settings, **own})
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
    if text.startswith("\ufeff"):
        raise ValueError("the line begins with a byte-order mark, which stands at the start of a file only")
    try:
        value = json.loads(text, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"broken JSON at column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}") from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"the line must be a JSON object, not `{shorten(text.strip(), 40)}`")
    return value


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
