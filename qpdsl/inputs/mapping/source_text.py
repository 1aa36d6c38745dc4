"""The text of a source, as `--map NAME=SOURCE` has it.

question                  a field, or a part of one: `meta.level`, `choices[0]`
regex:#### (.+)           the first match in the field NAME: group 1, or all of it where there is no group
solution:regex:#### (.+)  the same in another field
solution:boxed            the last `\\boxed{…}`
level:number              the last number
choices:json              the JSON value in a text
{question} ({unit})       a text with fields in it; `{{` and `}}` are braces
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qpdsl.errors import UsageError, shorten
from qpdsl.grammar.literals.matcher import Matcher
from qpdsl.inputs.mapping.field_source import (
    Computed,
    Field,
    FieldSource,
    Filled,
    by_regex,
    from_json_text,
    last_box,
    last_number,
)

_REGEX = "regex:"
_READERS = {
    "boxed": (last_box, "the last box"),
    "number": (last_number, "the last number"),
    "json": (from_json_text, "as JSON"),
}
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def field_source(name: str, text: str) -> FieldSource:
    """The source that `--map name=text` writes. Raises UsageError."""
    field, colon, rest = text.partition(":")
    if text.startswith(_REGEX):
        return by_regex(Field(name), _matcher(name, text.removeprefix(_REGEX)))
    if colon and "{" not in field and rest.startswith(_REGEX):
        return by_regex(Field(field), _matcher(name, rest.removeprefix(_REGEX)))
    field, colon, reader = text.rpartition(":")
    if colon and reader in _READERS and "{" not in field:
        return Computed(Field(field or name), *_READERS[reader])
    return Filled(tuple(_parts(name, text))) if "{" in text else Field(text)


def _matcher(name: str, pattern: str) -> Matcher:
    try:
        return Matcher(pattern)
    except ValueError as error:
        raise UsageError(f"`--map {name}=…`: the regex `{shorten(pattern)}` cannot be used: {error}") from error


def _parts(name: str, text: str) -> Iterator[str | Field]:
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
            yield Field(brace[1].strip())
    yield text[end:]
