"""JSON Schema documents: what llguidance would pass over in silence, how they nest, and the types of paths in them.

MERGED: Asking llguidance whether it takes a constraint. It is loaded with the first constraint, not before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import Type
from qpdsl.planner.plan.ops import ConstraintKind

Document = dict[str, Any]
_HALF = re.compile("[\ud800-\udfff]")
MAX_DEPTH = 64

# Keywords by what their values hold: one schema, a list of schemas, schemas by name, or nothing that is a schema.
_ONE = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
_ONE |= {"unevaluatedProperties", "unevaluatedItems"}
_LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
# What llguidance holds a text to, or refuses by itself.
_PLAIN = {"$ref", "const", "enum", "type", "required", "minItems", "maxItems", "minProperties", "maxProperties"}
_PLAIN |= {"minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_PLAIN |= {"multipleOf", "uniqueItems", "minContains", "maxContains", "dependentRequired"}
_NOTES = {"$schema", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_KNOWN = _ONE | _LISTED | _NAMED | _PLAIN | _NOTES
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TYPES: Mapping[str, Type] = {"string": "text", "integer": "int", "number": "float", "boolean": "bool"}


def to_text(document: Document) -> str:
    """The document as JSON text; the order of fields is part of its meaning."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # JSON can spell half a character, which no encoding of text can hold.
    return text if text.isascii() or not _HALF.search(text) else json.dumps(document, separators=(",", ":"))


def faults(document: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """What cannot be held to: where, as a path of JSON Schema keywords, and why."""
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
        if key == "$id" and depth == 0:
            continue
        if key not in _KNOWN:
            near = closest(key, _KNOWN)
            yield where, f"`{key}` is not supported" + (f"; did you mean `{near}`?" if near else "")
        elif key in _ONE:
            yield from faults(value, f"{path}/{key}", depth + 1)
        elif key in _LISTED or key in _NAMED:
            yield from _each(key, value, f"{path}/{key}", depth + 1)
        elif key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, (int, float))):
            yield where, f"`{key}` takes a number"
    if "format" in document and document.get("type") != "string":
        yield where, '`format` stands beside `"type": "string"`'
    elif document.get("format") == "unknown":  # a name that llguidance lets pass
        yield where, "Unknown format: unknown"


def _each(key: str, value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list if key in _LISTED else dict):
        yield path, f"`{key}` takes {'a list' if key in _LISTED else 'an object'} of schemas"
        return
    for name, inner in enumerate(value) if isinstance(value, list) else value.items():
        yield from faults(inner, f"{path}/{name}", depth)


def children(document: Document) -> Iterator[tuple[str, Document]]:
    """The schemas right inside a checked one, by their paths; not the definitions."""
    for key, value in document.items():
        if key in _ONE and isinstance(value, dict):
            yield key, value
        elif key in _LISTED or (key in _NAMED and key not in ("$defs", "definitions")):
            named = enumerate(value) if isinstance(value, list) else value.items()
            yield from ((f"{key}/{name}", inner) for name, inner in named if isinstance(inner, dict))


def nested(document: Any, prefix: str) -> Any:
    """A checked document as it stands inside another one at `prefix`: its references lead there."""
    if not isinstance(document, dict):
        return document
    made: Document = {}
    for key, value in document.items():
        if key in ("$schema", "$id"):
            continue
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            made[key] = prefix + value[1:]
        elif key in _ONE:
            made[key] = nested(value, prefix)
        elif key in _LISTED:
            made[key] = [nested(inner, prefix) for inner in value]
        elif key in _NAMED:
            made[key] = {name: nested(inner, prefix) for name, inner in value.items()}
        else:
            made[key] = value
    return made


@dataclass(frozen=True, slots=True)
class NothingThere:
    """Why nothing can stand at a path: the place of the step in it, the reason, and the fields that there are."""

    step: int
    reason: str
    fields: tuple[str, ...] = ()


def type_at(document: Document, steps: tuple[str | int, ...]) -> Type | NothingThere:
    """The column type of what stands at a path.

    Lists and objects are read as JSON text; so is what may be of several types.
    """
    here: Any = _resolved(document, document)
    for place, step in enumerate(steps):
        if not isinstance(here, dict) or not isinstance(here.get("type"), str):
            return "text"
        kind = here["type"]
        if isinstance(step, int):
            if kind != "array":
                return NothingThere(place, f"`[{step}]` reads a list, but this is {_a(kind)}")
            most = here.get("maxItems")
            if isinstance(most, int) and step >= most:
                return NothingThere(place, f"`[{step}]` reads past the end: the list has at most {most} items")
            first = here.get("prefixItems", [])
            here = first[step] if step < len(first) else here.get("items", True)
        else:
            if kind != "object":
                return NothingThere(place, f"`.{step}` reads a field, but this is {_a(kind)}")
            fields = here.get("properties", {})
            if step not in fields and here.get("additionalProperties") is False and "patternProperties" not in here:
                return NothingThere(place, f"there is no field `{step}`", tuple(fields))
            here = fields.get(step, here.get("additionalProperties", True))
        here = _resolved(here, document)
    kind = here.get("type") if isinstance(here, dict) else None
    return _TYPES.get(kind, "text") if isinstance(kind, str) else "text"


def _a(kind: str) -> str:
    words = {"object": "a record", "array": "a list", "string": "a text", "integer": "an int", "number": "a float"}
    return words.get(kind, f"a {kind}")


def _resolved(here: Any, root: Document) -> Any:
    """What a reference leads to; at most as many steps as any honest chain has."""
    for _ in range(MAX_DEPTH):
        if not isinstance(here, dict) or not isinstance(here.get("$ref"), str):
            return here
        target: Any = root
        for part in here["$ref"].removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        here = target
    return True


# The formats of JSON Schema that llguidance holds a text to.
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_REASON = re.compile(r"^error: (.*)$", re.MULTILINE)


@lru_cache(maxsize=512)
def refusal(kind: ConstraintKind, source: str) -> str | None:
    """Why llguidance refuses a constraint, in one line without a full stop; None where it takes it."""
    from llguidance import LLMatcher

    match kind:
        case "json_schema":
            grammar = LLMatcher.grammar_from_json_schema(source)
        case "regex":
            grammar = LLMatcher.grammar_from_regex(source)
        case "choice":
            options = " | ".join(json.dumps(option, ensure_ascii=False) for option in json.loads(source))
            grammar = LLMatcher.grammar_from_lark(f"start: {options}")
        case "grammar":
            grammar = LLMatcher.grammar_from_lark(source)
    message: str = LLMatcher.validate_grammar(grammar, None)
    return _one_line(message, placed=kind == "grammar") if message else None


def _one_line(message: str, *, placed: bool) -> str:
    """The reason alone: without the excerpt below it, and with its place only where there is a file to look into."""
    reason = _REASON.search(message)
    place = _PLACE.match(message)
    text = reason[1] if reason else _PLACE.sub("", message).strip().split("\n")[0]
    text = text.strip().rstrip(".")
    return f"line {place[1]}, column {place[2]}: {text}" if placed and place else text
