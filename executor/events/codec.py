"""Events as lines of JSON and back. The same lines go into traces and over sockets.

The first line is a header with the version of the format. A reader skips kinds of events that it does not know and
ignores fields that it does not know, so that newer traces stay readable.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from json.encoder import encode_basestring as _text
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qpdsl.executor.events import events
from qpdsl.executor.events.events import CandidateRecord, EngineFigures, Event, OperatorEstimate

if TYPE_CHECKING:
    from qpdsl.executor.engine.step_report import StepReport

FORMAT = 2
_MARK = "qpdsl_trace"
_WRITE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Digits after the point: finer differences cannot be seen.
_DIGITS = 6
_LOGPROB = "%.4f,"
# Counts do not come near, and beyond it a float does not hold every whole number.
_GREATEST = 1 << 53
# What begins the line of an event, what reads its values, and of each its name, its default, and what writes it.
_Writer = tuple[str, Callable[[Any], tuple[Any, ...]], list[tuple[str, Any, Callable[[Any], str]]]]
# The same of each class of report that was written; in the place of the default, whether every report has the value.
_REPORTS: dict[type, tuple[Callable[[Any], tuple[Any, ...]], list[tuple[str, bool, Callable[[Any], str]]]]] = {}
# No wait has a bucket beyond: 2^64 seconds are far longer than any.
_MAX_BUCKETS = 1024
# Counts of an engine's report by bucket.
_WAITS = ("first_waits", "waits")
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
    text, values, own = _WRITERS[type(event)]
    # The last value is the time, which no field here is for.
    told = [
        name + write(value)
        for (name, default, write), value in zip(own, values(event), strict=False)
        if value != default
    ]
    return f'{text}{"".join(told)},"at":{event.at - zero:.{_DIGITS}f}}}'


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


def _any_text(value: Any) -> str:
    return _WRITE(_plain(value))


def _number_text(value: float) -> str:
    if type(value) is int:
        return str(value)
    return f"{value:.{_DIGITS}f}" if value - value == 0 else "null"


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


def _finite(text: str) -> str:
    """Formatted log-probabilities as JSON has them: infinity as a number too large for a float, no number as none."""
    return text.replace("inf", "1e999").replace("nan", "null") if "n" in text else text


@lru_cache(maxsize=4096)
def _path_text(path: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, path))}]"


def _scalar_text(value: str | float | bool | None) -> str:
    if type(value) is str:
        return _text(value)
    return "null" if value is None else _bool_text(value) if type(value) is bool else _number_text(value)  # type: ignore[arg-type]


def _all_text(write: Callable[[Any], str]) -> Callable[[Iterable[Any]], str]:
    return lambda values: f"[{','.join(map(write, values))}]"


def _counts_text(counts: Mapping[str, int]) -> str:
    return f"{{{','.join([f'{_text(name)}:{count}' for name, count in counts.items()])}}}"


def _candidate_text(candidate: CandidateRecord) -> str:
    """The fields that say something: most of a trace is candidates."""
    told = [f'{{"path":{_path_text(candidate.path)},"logprob":{_finite(f"{candidate.logprob:.{_DIGITS}f}")}']
    if candidate.step:
        told.append(f',"step":{_text(candidate.step)}')
    if candidate.finish:
        told.append(f',"finish":{_text(candidate.finish)}')
    if candidate.finished:
        told.append(',"finished":true')
    if candidate.tokens:
        told.append(f',"tokens":{candidate.tokens}')
    if candidate.thought:
        told.append(f',"thought":{_text(candidate.thought)}')
    if candidate.thought_tokens:
        told.append(f',"thought_tokens":{candidate.thought_tokens}')
    if candidate.pieces:
        told.append(f',"pieces":[{",".join(map(_text, candidate.pieces))}]')
    if logprobs := candidate.logprobs:
        # A format for all of them takes a fifth of the time that rounding each does.
        told.append(f',"logprobs":[{_finite((_LOGPROB * len(logprobs) % logprobs)[:-1])}]')
    if candidate.written:
        told.append(f',"written":{_any_text(candidate.written)}')
    told.append("}")
    return "".join(told)


def _estimates_text(estimates: Mapping[str, OperatorEstimate]) -> str:
    told = {
        operator: {name: value for name, value in asdict(estimate).items() if value is not None}
        for operator, estimate in estimates.items()
    }
    return _any_text(told)


def _report_text(report: StepReport | EngineFigures) -> str:
    """The figures that every report has, and of the others those that are not 0, as most are."""
    if isinstance(report, EngineFigures):
        waits = {name: dict(counts) for name in _WAITS if (counts := getattr(report, name))}
        named = {name: getattr(report, name) for name in _FIGURES}
        return _any_text({"model": report.model, **named, **report.others, **waits})
    cls = type(report)
    if cls not in _REPORTS:
        own = fields(cls)
        _REPORTS[cls] = (
            attrgetter(*(field.name for field in own)),
            [(f',"{field.name}":', field.name in _FIGURES, _FORMS.get(str(field.type), _any_text)) for field in own],
        )
    values, names = _REPORTS[cls]
    told = [
        name + write(value)
        for (name, always, write), value in zip(names, values(report), strict=True)
        if value or always
    ]
    return f"{{{''.join(told)[1:]}}}"


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


def _logprob(value: Any) -> float:
    """A number, an infinite one too; none is no number."""
    if value is None:
        return math.nan
    return value if value in (math.inf, -math.inf) else _number(value)


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
    "LogProb": _logprob,
    "tuple[LogProb, ...]": _many(_logprob),
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
# How a field is written as JSON, by its annotation; what is written seldom, as any value.
_FORMS: dict[str, Callable[[Any], str]] = {
    "str": _text,
    "Status": _text,
    "int": "%d".__mod__,
    "float": _number_text,
    "bool": _bool_text,
    "str | None": _scalar_text,
    "float | None": _scalar_text,
    "Path": _path_text,
    "Rounds": _path_text,
    "tuple[Path, ...]": _all_text(_path_text),
    "tuple[str | float | bool | None, ...]": _all_text(_scalar_text),
    "tuple[float | None, ...]": _all_text(_scalar_text),
    "tuple[CandidateRecord, ...]": _all_text(_candidate_text),
    "Mapping[str, int]": _counts_text,
    "Mapping[str, OperatorEstimate]": _estimates_text,
    "StepReport | EngineFigures": _report_text,
}


def _writer(cls: type[Event]) -> _Writer:
    own = [field for field in fields(cls) if field.name != "at"]
    return (
        f'{{"kind":"{cls.__name__}"',
        attrgetter(*(field.name for field in own), "at"),
        [(f',"{field.name}":', field.default, _FORMS.get(str(field.type), _any_text)) for field in own],
    )


_WRITERS = {cls: _writer(cls) for cls in _KINDS.values()}
