"""The fields of a record under the names that a program uses, and what each is made of: `--map NAME=SOURCE`.

question                  a field, or a part of one: `meta.level`, `choices[0]`
regex:#### (.+)           the first match in the field NAME: group 1, or all of it where there is no group
solution:regex:#### (.+)  the same in another field
solution:boxed            the last `\\boxed{…}`
level:number              the last number
choices:json              the JSON value in a text
{question} ({unit})       a text with fields in it; `{{` and `}}` are braces
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.grammar.literals.matcher import Matcher
from qpdsl.grammar.suggest import closest, enumerated, listed
from qpdsl.runs.data.records import json_value

# A sign between two numbers, as in `3-4`, is none of the second.
_NUMBER = re.compile(r"(?:(?<![\w.)])[-+])?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(-?\d{1,9})\]")
_PATH = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*)((?:{_STEP.pattern})+)")

# Several fields in one option.
_SEVERAL = re.compile(r"\s*\w+\s*=[\w.\[\] ]+(?:,\s*\w+\s*=[\w.\[\] ]+)+")
_REGEX = "regex:"
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class FieldSource(Protocol):
    """Gives a value from the fields of a record. `words` says how, `reads` names the fields that it looks at."""

    @property
    def reads(self) -> tuple[str, ...]: ...

    @property
    def words(self) -> str: ...

    def value(self, fields: Mapping[str, Any]) -> Any:
        """The value, None where the record lacks the field. Raises ValueError with what is wrong with a field."""


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field as it is. `name` may lead into it, as `meta.level` and `choices[0]` do, if no field is called so."""

    name: str

    @property
    def reads(self) -> tuple[str, ...]:
        path = _PATH.fullmatch(self.name)
        return (self.name,) if path is None else (self.name, path[1])

    @property
    def words(self) -> str:
        return f"`{self.name}`"

    def value(self, fields: Mapping[str, Any]) -> Any:
        path = None if self.name in fields else _PATH.fullmatch(self.name)
        if path is None:
            return fields.get(self.name)
        value = fields.get(path[1])
        for name, place in _STEP.findall(path[2]):
            value = _part(value, name or int(place))
        return value


@dataclass(frozen=True, slots=True)
class Computed:
    """What `function` makes of a text. It raises ValueError where the text has nothing of what it looks for."""

    source: FieldSource
    function: Callable[[str], Any]
    how: str

    @property
    def reads(self) -> tuple[str, ...]:
        return self.source.reads

    @property
    def words(self) -> str:
        return f"{self.source.words} ({self.how})"

    def value(self, fields: Mapping[str, Any]) -> Any:
        value = self.source.value(fields)
        if value is None:
            return None
        if isinstance(value, list | dict | bool):
            raise ValueError(f"{self.source.words} must be text, not {shorten(json.dumps(value), 40)}")
        try:
            return self.function(str(value))
        except ValueError as error:
            raise ValueError(f"{error} in {self.source.words}: {shorten(str(value), 80)}") from error


@dataclass(frozen=True, slots=True)
class Combined:
    """What `function` makes of several fields, all of which the record must have."""

    reads: tuple[str, ...]
    function: Callable[..., Any]

    @property
    def words(self) -> str:
        return listed(self.reads, last="and")

    def value(self, fields: Mapping[str, Any]) -> Any:
        if any(name not in fields for name in self.reads):
            return None
        try:
            return self.function(*(fields[name] for name in self.reads))
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{self.words} hold something else than they are read for ({error})") from error


@dataclass(frozen=True, slots=True)
class Filled:
    """A text with fields in it: `parts` are texts and fields in order."""

    parts: tuple[str | RecordField, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts if isinstance(part, RecordField) for name in part.reads)

    @property
    def words(self) -> str:
        return f"a text with {listed((part.name for part in self.parts if isinstance(part, RecordField)), last='and')}"

    def value(self, fields: Mapping[str, Any]) -> str:
        return "".join(part if isinstance(part, str) else _shown(part, fields) for part in self.parts)


@dataclass(frozen=True, slots=True)
class FirstOf:
    """The first of several sources that the record has."""

    sources: tuple[FieldSource, ...]

    def among(self, names: Container[str]) -> FieldSource:
        """The same for data with fields of these names alone."""
        there = tuple(source for source in self.sources if is_there(source, names))
        return there[0] if len(there) == 1 else FirstOf(there or self.sources)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for source in self.sources for name in source.reads)

    @property
    def words(self) -> str:
        return enumerated([source.words for source in self.sources])

    def value(self, fields: Mapping[str, Any]) -> Any:
        values = (source.value(fields) for source in self.sources)
        return next((value for value in values if value is not None), None)


def is_there(source: FieldSource, names: Container[str]) -> bool:
    """Whether data with fields of these names can have a value of the source."""
    found = [name in names for name in source.reads]
    return all(found) if isinstance(source, Combined) else any(found)


def by_regex(source: FieldSource, pattern: Matcher) -> Computed:
    """Group 1 of the first match of a regex, or the whole match of one without a group."""

    def found(text: str) -> str:
        match = pattern.search(text)
        value = None if match is None else match.group if pattern.grouped else match.text
        if value is None:
            raise ValueError("the regex finds nothing")
        return value

    return Computed(source, found, "by a regex")


def last_number(text: str) -> int | float:
    """The last number in a text, which may have commas between thousands. Raises ValueError."""
    found = _NUMBER.findall(text)
    if not found:
        raise ValueError("there is no number")
    digits = found[-1].replace(",", "")
    if len(digits) > 1000:
        raise ValueError("a number is too long")
    return int(digits) if digits.lstrip("+-").isdigit() else float(digits)


def last_box(text: str) -> str:
    """What stands in the last `\\boxed{…}` of a text, inner braces and all. Raises ValueError."""
    # The engine's, which takes long to load.
    from qpdsl.executor.runtime.operators.answers import boxed

    found = [*boxed(text)]
    if not found:
        raise ValueError("there is no `\\boxed{…}`")
    return found[-1].strip()


def from_json_text(text: str) -> Any:
    """The JSON value that a text holds, as cells of tables do. Raises ValueError."""
    return json_value(text)


def _part(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step) if isinstance(value, dict) else None
    return value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None


def _shown(part: RecordField, fields: Mapping[str, Any]) -> str:
    value = part.value(fields)
    if value is None:
        raise ValueError(f"the record has no {part.words}, which a text is made of")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_READERS = {
    "boxed": (last_box, "the last box"),
    "number": (last_number, "the last number"),
    "json": (from_json_text, "as JSON"),
}


def field_source(name: str, text: str) -> FieldSource:
    """The source that `--map name=text` writes. Raises UsageError."""
    field, colon, rest = text.partition(":")
    if text.startswith(_REGEX):
        return by_regex(RecordField(name), _matcher(name, text.removeprefix(_REGEX)))
    if colon and "{" not in field and rest.startswith(_REGEX):
        return by_regex(RecordField(field), _matcher(name, rest.removeprefix(_REGEX)))
    field, colon, reader = text.rpartition(":")
    if colon and reader in _READERS and "{" not in field:
        return Computed(RecordField(field or name), *_READERS[reader])
    return Filled(tuple(_parts(name, text))) if "{" in text else RecordField(text)


def _matcher(name: str, pattern: str) -> Matcher:
    try:
        return Matcher(pattern)
    except ValueError as error:
        raise UsageError(f"`--map {name}=…`: the regex `{shorten(pattern)}` cannot be used: {error}") from error


def _parts(name: str, text: str) -> Iterator[str | RecordField]:
    end = 0
    for brace in _BRACES.finditer(text):
        yield text[end : brace.start()]
        end = brace.end()
        if brace[0] in ("{{", "}}"):
            yield brace[0][0]
        elif brace[1] is None or not brace[1].strip():
            raise UsageError(
                f"`--map {name}=…`: `{brace[0]}` names no field", "`{field}` puts a field in, `{{` and `}}` are braces"
            )
        else:
            yield RecordField(brace[1].strip())
    yield text[end:]


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """A source for each name that does not simply take the field of its own name."""

    sources: Mapping[str, FieldSource] = field(default_factory=dict)

    @classmethod
    def parsed(cls, texts: Iterable[str]) -> FieldMapping:
        """The mapping that `NAME=SOURCE` strings write. Raises UsageError, also for two sources of one name."""
        sources: dict[str, FieldSource] = {}
        for text in texts:
            name, sign, source = text.partition("=")
            name = name.strip()
            if not sign or not name or not source.strip():
                raise UsageError(f"`--map` takes NAME=SOURCE, not `{shorten(text)}`", "as in `--map problem=question`")
            if (several := _SEVERAL.fullmatch(text)) is not None:
                first, *others = (part.strip() for part in several[0].split(","))
                help = " ".join(f"--map {shorten(part)}" for part in (first, *others))
                raise UsageError(f"`--map` takes one NAME=SOURCE, and stands again for the next: `{help}`")
            if name in sources:
                raise UsageError(f"`--map` gives `{name}` twice")
            sources[name] = field_source(name, source)
        return cls(sources)

    def over(self, other: FieldMapping) -> FieldMapping:
        """Both mappings; of a name in both, this one's source."""
        return FieldMapping({**other.sources, **self.sources})

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(name for source in self.sources.values() for name in source.reads)

    @property
    def taken_whole(self) -> frozenset[str]:
        """The fields that are a value of another name as they are, so that nobody needs them under their own."""
        whole = {name: source.name for name, source in self.sources.items() if isinstance(source, RecordField)}
        return frozenset(source for name, source in whole.items() if source != name and source not in self.sources)

    def check(self, known: Iterable[str]) -> None:
        """Raises UsageError where a source reads no field that the data has; `known` are those of all its records."""
        names = list(known)
        for name, source in self.sources.items():
            if source.reads and not any(field in names for field in source.reads):
                if name in names and isinstance(source, RecordField) and closest(source.name, names) is None:
                    lead = f"`--map {name}={source.name}`: the data has no field `{shorten(source.name)}`"
                    raise UsageError(f"{lead}; it is PARAMETER=FIELD", f"`--map {source.name}={name}`")
                lead = f"`--map {name}=…`: the data has no field"
                raise UsageError(unknown(source.reads[0], names, lead))

    def apply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a record with the values of the names in them; a name without a value is no field.

        Raises ValueError.
        """
        values = {name: source.value(fields) for name, source in self.sources.items()}
        return {name: value for name, value in {**fields, **values}.items() if value is not None}
