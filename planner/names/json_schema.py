"""JSON Schema documents: faults that llguidance would ignore, how they nest, and the column types of paths in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from graphlib import CycleError, TopologicalSorter
from typing import Any

from qpdsl.grammar.literals import regex
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import Type
from qpdsl.planner.names.json_pointer import pointer_of, target_of
from qpdsl.planner.values.value import is_record, list_of, record_of

Document = dict[str, Any]
MAX_DEPTH = 64
# The longest type of a record that is told by its fields, in characters.
_MAX_TYPE = 4096
# The formats of JSON Schema that llguidance supports.
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
# Up to here 64-bit floats hold every integer, and the next one too.
LARGEST_BOUND = 2**53 - 1
BOUNDS = f"llguidance holds to integers from {-LARGEST_BOUND:,} to {LARGEST_BOUND:,} exactly"
_SURROGATE = re.compile("[\ud800-\udfff]")

# Keywords by their values: one schema, a list of schemas, schemas by name, or no schema.
_ONE = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
_ONE |= {"unevaluatedProperties", "unevaluatedItems"}
_LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SAME = ("anyOf", "oneOf", "allOf")
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
# Keywords that llguidance supports, or refuses by itself.
_PLAIN = {"$ref", "const", "enum", "type", "required", "minItems", "maxItems", "minProperties", "maxProperties"}
_PLAIN |= {"minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_PLAIN |= {"multipleOf", "uniqueItems", "minContains", "maxContains", "dependentRequired"}
_NOTES = {"$schema", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_KNOWN = _ONE | _LISTED | _NAMED | _PLAIN | _NOTES
_CONSTRAINING = _KNOWN - _NOTES
# Keywords of some version of JSON Schema, or of OpenAPI, that are not supported and would change what is let through.
_REFUSED = {"nullable", "dependencies", "extends", "disallow", "divisibleBy", "contentEncoding", "contentSchema"}
_REFUSED |= {"contentMediaType", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"}
# How words begin that say of themselves that they are notes.
_OWN = ("_", "x-")
# The options of llguidance in a schema, of which one may be set.
_OPTIONS = "x-guidance"
# What stands between the parts of a record: what `json.dumps` writes, which is what models have read most. With one way
# to write it, half of a record's tokens are forced. A schema may ask for any white space (`x-guidance`).
SPACING: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# From here on two words are as alike as one is with a letter left out, doubled or changed.
_SLIP = 0.85
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TYPES: Mapping[str, Type] = {"string": "text", "integer": "int", "number": "float", "boolean": "bool"}


def to_text(document: Document) -> str:
    """The document as JSON text; the order of fields is part of its meaning."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # JSON can escape a lone surrogate, which UTF-8 cannot encode.
    return text if text.isascii() or not _SURROGATE.search(text) else json.dumps(document, separators=(",", ":"))


def faults(document: Any) -> Iterator[tuple[str, str]]:
    """What no output can be held to: where, as a path of JSON Schema keywords, and why."""
    yield from _faults(document, "", 0)
    yield from _reference_faults(document)


def _faults(document: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    where = path or "the schema"
    if isinstance(document, bool):
        return
    if not isinstance(document, dict):
        yield where, "a schema is an object"
        return
    if depth > MAX_DEPTH:
        yield where, f"schemas nest over {MAX_DEPTH} deep"
        return
    for key, value in document.items():
        if key == _OPTIONS:
            yield from ((where, fault) for fault in _option_faults(value, depth))
        elif key in _REFUSED:
            yield where, f"`{key}` is not supported"
        elif key in ("id", "$id"):
            if depth > 0 and isinstance(value, str) and _refers(document):
                yield where, f"`{key}` would change where references lead"
        elif key not in _KNOWN:
            if (near := _slip_of(key)) is not None:
                yield where, f"`{key}` is not supported; did you mean `{near}`?"
        elif key in _ONE:
            yield from _faults(value, f"{path}/{key}", depth + 1)
        elif key in _LISTED or key in _NAMED:
            yield from _inner_faults(key, value, f"{path}/{key}", depth + 1)
        elif key in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                yield where, f"`{key}` takes a number"
            elif beyond_bounds(value, whole=document.get("type") != "number"):
                yield where, f"`{key}` is {value}: {BOUNDS}"
        elif key in ("const", "enum"):
            yield from ((where, f"`{key}` has {number}: {BOUNDS}") for number in _inexact(value))
        elif key == "pattern":
            yield from _pattern_faults(where, value)
    if "format" in document and document.get("type") != "string" and not _formats_nothing(document):
        yield where, '`format` stands beside `"type": "string"`'
    elif document.get("format") == "unknown":  # llguidance accepts this name
        yield where, "Unknown format: unknown"


def notes(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The words of a sound document that hold no output to anything: where they stand, as in `faults`, and which.

    Those that say so themselves, by how they begin, are left out.
    """
    if not isinstance(document, dict):
        return
    where = path or "the schema"
    for key in document:
        if key not in _KNOWN and key not in ("id", "$id") and not key.startswith(_OWN):
            yield where, key
    if _formats_nothing(document):
        yield where, "format"
    for key, value in document.items():
        if key in _ONE:
            yield from notes(value, f"{path}/{key}")
        elif key in _LISTED or key in _NAMED:
            for name, inner in enumerate(value) if isinstance(value, list) else value.items():
                yield from notes(inner, f"{path}/{key}/{name}")


def without_notes(schema: Document) -> Document:
    """A sound schema, for itself, without the words that hold no output to anything."""
    kept = {key: value for key, value in schema.items() if key in _KNOWN or key in ("$id", _OPTIONS)}
    if _formats_nothing(schema):
        del kept["format"]
    return kept


def _formats_nothing(document: Document) -> bool:
    """Whether a `format` is of another type than text, which leaves values as they are, such as `int32`."""
    kind = document.get("type")
    kinds = [kind] if isinstance(kind, str) else kind
    return "format" in document and isinstance(kinds, list) and bool(kinds) and "string" not in kinds


def _slip_of(key: str) -> str | None:
    """The constraining keyword that was likely meant; None for a word of the schema's author."""
    if key.startswith(_OWN):
        return None
    near = closest(key, _CONSTRAINING)
    if near is None or SequenceMatcher(None, near.lower(), key.lower()).ratio() < _SLIP:
        return None
    return near


def _option_faults(options: Any, depth: int) -> Iterator[str]:
    if depth > 0:
        yield f"`{_OPTIONS}` stands at the top of a schema"
    elif not isinstance(options, dict) or set(options) != {"whitespace_flexible"}:
        yield f'`{_OPTIONS}` takes `{{"whitespace_flexible": true}}`, or false'
    elif not isinstance(options["whitespace_flexible"], bool):
        yield "`whitespace_flexible` is true or false"


def _refers(document: Any) -> bool:
    """Whether a reference stands somewhere inside."""
    if isinstance(document, list):
        return any(map(_refers, document))
    return isinstance(document, dict) and ("$ref" in document or any(map(_refers, document.values())))


def _inner_faults(key: str, value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list if key in _LISTED else dict):
        yield path, f"`{key}` takes {'a list' if key in _LISTED else 'an object'} of schemas"
        return
    for name, inner in enumerate(value) if isinstance(value, list) else value.items():
        if key == "patternProperties":
            yield from _pattern_faults(path, name)
        yield from _faults(inner, f"{path}/{name}", depth)


def _reference_faults(document: Any) -> Iterator[tuple[str, str]]:
    """References that lead to nothing, to what is no schema and so was not looked at, or back with nothing between."""
    schemas = dict[int, tuple[str, Document]]()
    left: list[tuple[str, Any]] = [("", document)]
    while left:
        path, schema = left.pop()
        if not isinstance(schema, dict) or id(schema) in schemas:
            continue
        schemas[id(schema)] = path, schema
        for key, value in schema.items():
            if key in _ONE:
                left.append((f"{path}/{key}", value))
            elif (key in _LISTED and isinstance(value, list)) or (key in _NAMED and isinstance(value, dict)):
                named = enumerate(value) if isinstance(value, list) else value.items()
                left += [(f"{path}/{key}/{name}", inner) for name, inner in named]
    # The schemas that each one puts to the very same value.
    same = {
        number: [id(one) for key in _SAME if isinstance(schema.get(key), list) for one in schema[key]]
        for number, (_, schema) in schemas.items()
    }
    for path, schema in schemas.values():
        where, reference = path or "the schema", schema.get("$ref", "")
        if not isinstance(reference, str):
            yield where, "`$ref` takes a text"
            continue
        try:
            target = target_of(document, reference)
        except LookupError as error:
            yield where, str(error.args[0])
            continue
        if not isinstance(target, bool) and id(target) not in schemas:
            yield where, f"`$ref` {reference} leads to what is no schema"
        elif "$ref" in schema:
            same[id(schema)].append(id(target))
    try:
        TopologicalSorter(same).prepare()
    except CycleError as error:
        # The ids of true and false are in no cycle.
        yield schemas[error.args[1][0]][0] or "the schema", "`$ref` leads back to itself with nothing between"


def _pattern_faults(where: str, pattern: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(pattern, str):
        yield where, "a pattern is a text"
        return
    fault = regex.check(pattern, 0) if pattern else None
    if fault is not None:
        yield where, f"the pattern `{pattern}`: {fault.message}"


def _inexact(value: Any) -> Iterator[int]:
    """The integers in a JSON value that llguidance would write as others."""
    if isinstance(value, (list, dict)):
        for inner in value if isinstance(value, list) else value.values():
            yield from _inexact(inner)
    elif isinstance(value, int) and beyond_bounds(value, whole=True):
        yield value


def beyond_bounds(number: int | float, *, whole: bool) -> bool:
    """Whether llguidance would take another number in place of this one: it reads all as 64-bit floats."""
    return abs(number) > LARGEST_BOUND and (whole or isinstance(number, int))


def children(document: Document) -> Iterator[tuple[str, Document]]:
    """The schemas directly inside a checked one, by their paths, without the definitions."""
    for key, value in document.items():
        if key in _ONE and isinstance(value, dict):
            yield key, value
        elif key in _LISTED or (key in _NAMED and key not in ("$defs", "definitions")):
            named = enumerate(value) if isinstance(value, list) else value.items()
            yield from ((f"{key}/{name}", inner) for name, inner in named if isinstance(inner, dict))


def rebuilt(document: Any, change: Callable[[Document], Document]) -> Any:
    """A checked document in which each schema, the innermost first, is what `change` makes of it."""
    if not isinstance(document, dict):
        return document
    copy: Document = {}
    for key, value in document.items():
        if key in _ONE:
            copy[key] = rebuilt(value, change)
        elif key in _LISTED:
            copy[key] = [rebuilt(inner, change) for inner in value]
        elif key in _NAMED:
            copy[key] = {name: rebuilt(inner, change) for name, inner in value.items()}
        else:
            copy[key] = value
    return change(copy)


def nested(document: Any, prefix: str) -> Any:
    """A checked document to be put into another one at the path `prefix`: its references lead there."""

    def moved(schema: Document) -> Document:
        copy = {key: value for key, value in schema.items() if key not in ("$schema", "$id", _OPTIONS)}
        if "$ref" in copy:
            copy["$ref"] = prefix + pointer_of(document, copy["$ref"])
        return copy

    return rebuilt(document, moved)


@dataclass(frozen=True, slots=True)
class PathFault:
    """Why a path leads to nothing: the index of the wrong step, the reason, and the fields that there are."""

    step: int
    reason: str
    fields: tuple[str, ...] = ()


def type_at(document: Document, steps: tuple[str | int, ...]) -> Type | PathFault:
    """The column type of the value at a path.

    Lists and objects are read as JSON text, and so is a value that may be of several types.
    """
    schema = _schema_at(document, steps)
    if isinstance(schema, PathFault):
        return schema
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _TYPES.get(kind, "text") if isinstance(kind, str) else "text"


def item_type_at(document: Document, steps: tuple[str | int, ...]) -> Type | PathFault:
    """The type of what the list at a path holds."""
    schema = _schema_at(document, (*steps, 0))
    return schema if isinstance(schema, PathFault) else _Types(document).of(schema)


def _schema_at(document: Document, steps: tuple[str | int, ...]) -> Any:
    """The schema of the value at a path, `True` where nothing is said of it; or what is wrong with the path."""
    schema: Any = _resolved(document, document)
    for index, step in enumerate(steps):
        if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
            return True
        kind = schema["type"]
        if isinstance(step, int):
            if kind != "array":
                return PathFault(index, f"`[{step}]` reads a list, but this is {_with_article(kind)}")
            most = schema.get("maxItems")
            if isinstance(most, int) and step >= most:
                return PathFault(index, f"`[{step}]` reads past the end: the list has at most {most} items")
            first = schema.get("prefixItems", [])
            schema = first[step] if step < len(first) else schema.get("items", True)
        else:
            if kind != "object":
                return PathFault(index, f"`.{step}` reads a field, but this is {_with_article(kind)}")
            fields = schema.get("properties", {})
            if step not in fields and schema.get("additionalProperties") is False and "patternProperties" not in schema:
                return PathFault(index, f"there is no field `{step}`", tuple(fields))
            schema = fields.get(step, schema.get("additionalProperties", True))
        schema = _resolved(schema, document)
    return schema


def closed(value: Any) -> Any:
    """The schema with no fields allowed but those that its objects name, where it does not say."""
    if isinstance(value, list):
        return [closed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    schema = {key: closed(part) for key, part in value.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    return schema


def value_type(document: Document) -> Type:
    """The type of the values of a schema: what a column or a parameter is that holds one."""
    return _Types(document).of(document)


class _Types:
    """The types of the schemas of a document. Each is worked out once, however many references lead to it."""

    def __init__(self, root: Document) -> None:
        self._root = root
        self._known: dict[int, Type] = {}

    def of(self, schema: Any) -> Type:
        """The type of the values of a schema. Inside of itself it is unknown."""
        schema = _resolved(schema, self._root)
        kind = schema.get("type") if isinstance(schema, dict) else None
        if not isinstance(kind, str):
            either = [self.of(one) for one in schema.get("anyOf", ())] if isinstance(schema, dict) else []
            return "record" if either and all(map(is_record, either)) else "unknown"
        if kind not in ("array", "object"):
            return _TYPES.get(kind, "none" if kind == "null" else "unknown")
        if id(schema) not in self._known:
            self._known[id(schema)] = "unknown"
            self._known[id(schema)] = self._compound(schema)
        return self._known[id(schema)]

    def _compound(self, schema: Document) -> Type:
        if schema["type"] == "array":
            return list_of(self.of(schema.get("items", True)))
        fields = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or "patternProperties" in schema or not fields:
            return "record"
        made = record_of({name: self.of(field) for name, field in fields.items()})
        # A type is written out, and one of a few references a level would grow without end.
        return made if len(made) <= _MAX_TYPE else "record"


def _with_article(kind: str) -> str:
    words = {"object": "a record", "array": "a list", "string": "a text", "integer": "an int", "number": "a float"}
    return words.get(kind, f"a {kind}")


def _resolved(schema: Any, root: Document) -> Any:
    """The schema that a reference leads to; any schema (True) where more than `MAX_DEPTH` lead to one another."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        schema = target_of(root, schema["$ref"])
    return True
