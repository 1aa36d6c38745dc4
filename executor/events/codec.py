"""Events as lines of JSON and back. The same lines go into traces and over sockets.

The first line is a header with the version of the format. A reader skips kinds of events that it does not know and
ignores fields that it does not know, so that newer traces stay readable.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from qpdsl.executor.events import events
from qpdsl.executor.events.events import CandidateRecord, EngineFigures, Event, OperatorEstimate

FORMAT = 2
_MARK = "qpdsl_trace"
# Digits after the point: finer differences cannot be seen.
_DIGITS = 6
_LOGPROB_DIGITS = 4
# Counts do not come near, and beyond it a float does not hold every whole number.
_GREATEST = 1 << 53
# The fields of each class of report that was written.
_REPORT_FIELDS: dict[type, tuple[str, ...]] = {}
# No wait has a bucket beyond: 2^64 seconds are far longer than any.
_MAX_BUCKETS = 1024
# Counts of an engine's report by bucket.
_WAITS = ("first_waits", "waits")
# What a report leaves out where there is none.
_SELDOM = (*_WAITS, "choice")
_FIGURES = tuple(field.name for field in fields(EngineFigures) if field.name not in ("model", "others", *_WAITS))


class BadEvent(ValueError):
    """A line that is no event."""


class UnknownKind(BadEvent):
    """An event of a kind that this version does not know."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"events of the kind `{kind}` are not known here")
        self.kind = kind


def header() -> str:
    return json.dumps({_MARK: FORMAT})


def read_header(line: str) -> int:
    """The version of the format. Raises BadEvent where the line is no header of a trace."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    version = record.get(_MARK) if isinstance(record, dict) else None
    if not isinstance(version, int):
        raise BadEvent("this is no trace of qpdsl")
    return version


def encode(event: Event, zero: float) -> str:
    """One line, without the newline; times count from `zero`."""
    record: dict[str, Any] = {"kind": type(event).__name__}
    for name, default, write in _WRITERS[type(event)]:
        value = getattr(event, name)
        if value != default:
            record[name] = value if write is None else write(value)
    record["at"] = round(event.at - zero, _DIGITS)
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def decode(line: str) -> Event:
    """The event of a line. Raises BadEvent."""
    try:
        record = json.loads(line, parse_constant=_refused)
    except (ValueError, RecursionError):
        raise BadEvent("not a line of JSON") from None
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str):
        raise BadEvent("no event")
    cls = _KINDS.get(kind)
    if cls is None:
        raise UnknownKind(kind)
    try:
        return cls(**_read_fields(cls, record))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadEvent(f"a broken `{kind}`: {error}") from None


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no figure")


def _plain(value: Any) -> Any:
    match value:
        case float():
            return round(value, _DIGITS) if value - value == 0 else None
        case tuple() | list():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
    return value


def _candidate_record(candidate: CandidateRecord) -> dict[str, Any]:
    """The fields that say something. Written by hand, because most of a trace is candidates."""
    record: dict[str, Any] = {"path": candidate.path}
    for name in ("step", "finish", "finished", "tokens", "thought", "thought_tokens"):
        value = getattr(candidate, name)
        if value:
            record[name] = value
    record["logprob"] = _plain(candidate.logprob)
    if candidate.pieces:
        record["pieces"] = candidate.pieces
        record["logprobs"] = [round(logprob, _LOGPROB_DIGITS) for logprob in candidate.logprobs]
    if candidate.written:
        record["written"] = candidate.written
    return record


def _estimates(estimates: Mapping[str, OperatorEstimate]) -> dict[str, Any]:
    names = [field.name for field in fields(OperatorEstimate)]
    return {
        operator: {name: _plain(value) for name in names if (value := getattr(estimate, name)) is not None}
        for operator, estimate in estimates.items()
    }


def _report(report: Any) -> dict[str, Any]:
    if isinstance(report, EngineFigures):
        waits = {name: dict(counts) for name in _WAITS if (counts := getattr(report, name))}
        return {"model": report.model, **{name: getattr(report, name) for name in _FIGURES}, **report.others, **waits}
    names = _REPORT_FIELDS.get(type(report))
    if names is None:
        names = _REPORT_FIELDS[type(report)] = tuple(field.name for field in fields(report))
    return {name: _plain(value) for name in names if (value := getattr(report, name)) or name not in _SELDOM}


def _read_fields(cls: type[Any], record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: read(record[name]) for name, read in _READERS[cls] if name in record}


def _checked(*types: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        odd = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
        if odd or (isinstance(value, int | float) and not abs(value) < math.inf):
            raise ValueError(f"{value!r:.40} is not a {types[0].__name__}")
        if isinstance(value, int) and abs(value) > _GREATEST:
            raise ValueError(f"{value!r:.40} is not a {types[0].__name__}")
        return value

    return read


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r:.40} is not a number")
    if not abs(value) <= (_GREATEST if isinstance(value, int) else sys.float_info.max):
        raise ValueError("a number that is too large")
    return float(value)


def _count(value: Any) -> int:
    number = _number(value)
    if not abs(number) <= _GREATEST:
        raise ValueError("a count that is too large")
    return int(number)


def _time(value: Any) -> float:
    time = _number(value)
    if not abs(time) < _GREATEST:
        raise ValueError(f"{value!r:.40} is no time")
    return time


def _many(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list):
            raise ValueError(f"{values!r:.40} is not a list")
        return tuple(map(read, values))

    return read_all


def _candidate(record: Any) -> CandidateRecord:
    return CandidateRecord(**_read_fields(CandidateRecord, _checked(dict)(record)))


def _figures(record: Any) -> EngineFigures:
    missing = [name for name in ("model", *_FIGURES) if name not in record]
    if missing:
        raise ValueError(f"a report without `{missing[0]}`")
    figures = {name: _count(record[name]) for name in _FIGURES}
    others = {
        name: _time(value)
        for name, value in record.items()
        if name not in figures and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    waits: dict[str, Any] = {name: _buckets(record[name]) for name in _WAITS if name in record}
    model = _checked(str)(record["model"])
    return EngineFigures(model=model, others=others, **figures, **waits)  # type: ignore[arg-type]


def _estimate(record: Any) -> OperatorEstimate:
    return OperatorEstimate(**_read_fields(OperatorEstimate, _checked(dict)(record)))


def _sums(record: Any) -> dict[str, tuple[float, ...]]:
    return {name: _many(_number)(values) for name, values in _checked(dict)(record).items()}


def _counts(record: Any) -> dict[str, int]:
    return {name: _count(value) for name, value in _checked(dict)(record).items()}


def _buckets(record: Any) -> dict[int, int]:
    return {_bucket(name): _count(value) for name, value in _checked(dict)(record).items()}


def _bucket(name: str) -> int:
    bucket = int(name)
    if abs(bucket) > _MAX_BUCKETS:
        raise ValueError(f"{name:.40} is no bucket")
    return bucket


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


_path = _many(_checked(int))
# How a field is read, by its annotation.
_TYPES: dict[str, Callable[[Any], Any]] = {
    "str": _checked(str),
    "str | None": _optional(_checked(str)),
    "int": _checked(int),
    "int | None": _optional(_checked(int)),
    "float": _number,
    "float | None": _optional(_number),
    "bool": _checked(bool),
    "bool | None": _optional(_checked(bool)),
    "Status": _checked(str),
    "Path": _path,
    "Rounds": _path,
    "Aside": _many(_checked(str)),
    "tuple[Path, ...]": _many(_path),
    "tuple[str, ...]": _many(_checked(str)),
    "tuple[float, ...]": _many(_number),
    "tuple[float | None, ...]": _many(_optional(_number)),
    "tuple[str | None, ...]": _many(_optional(_checked(str))),
    "tuple[str | float | bool | None, ...]": _many(_optional(_checked(str, int, float, bool))),
    "tuple[CandidateRecord, ...]": _many(_candidate),
    "Mapping[str, Any]": _checked(dict),
    "Mapping[str, int]": _counts,
    "Mapping[str, Mapping[str, int]]": lambda record: {
        name: _counts(counts) for name, counts in _checked(dict)(record).items()
    },
    "Mapping[str, tuple[float, ...]]": _sums,
    "Mapping[str, tuple[int, ...]]": lambda record: {name: _path(own) for name, own in _checked(dict)(record).items()},
    "Mapping[str, OperatorEstimate]": lambda record: {
        name: _estimate(own) for name, own in _checked(dict)(record).items()
    },
    "StepReport | EngineFigures": _figures,
}


def _kinds() -> dict[str, type[Event]]:
    bases = (events.Event, events.Detail)
    classes = [value for value in vars(events).values() if isinstance(value, type) and issubclass(value, Event)]
    return {cls.__name__: cls for cls in classes if cls not in bases}


_KINDS = _kinds()
_READERS = {
    cls: tuple((field.name, _time if field.name == "at" else _TYPES[str(field.type)]) for field in fields(cls))
    for cls in (*_KINDS.values(), CandidateRecord, OperatorEstimate)
}
# How a field is written, by its annotation; JSON takes the others as they are.
_FORMS: dict[str, Callable[[Any], Any]] = {
    "float": _plain,
    "float | None": _plain,
    "tuple[float, ...]": _plain,
    "tuple[float | None, ...]": _plain,
    "tuple[str | float | bool | None, ...]": _plain,
    "tuple[CandidateRecord, ...]": lambda candidates: [_candidate_record(candidate) for candidate in candidates],
    "Mapping[str, Any]": _plain,
    "Mapping[str, OperatorEstimate]": _estimates,
    "Mapping[str, tuple[float, ...]]": _plain,
    "StepReport | EngineFigures": _report,
}
_WRITERS = {
    cls: tuple((field.name, field.default, _FORMS.get(str(field.type))) for field in fields(cls) if field.name != "at")
    for cls in _KINDS.values()
}
