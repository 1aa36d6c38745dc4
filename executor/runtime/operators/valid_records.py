"""Whether a JSON text satisfies a JSON Schema, by an implementation of its own.

Constrained decoding should let nothing else through, but it compiles a schema to a grammar, and such compilers have
faults. A record that they let through is checked once more here, so that none is taken for valid that is not. Numbers
are compared as the decimals that they are written as.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from datetime import date
from decimal import Context, Decimal, DecimalException
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any

from qpdsl.grammar.literals.matcher import matcher
from qpdsl.planner.names.json_pointer import target_of

_MAX_DIGITS = 4000
_EXACT = Context(prec=2 * _MAX_DIGITS)
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, Decimal),
    "integer": lambda value: isinstance(value, Decimal) and value == value.to_integral_value(),
}
_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value >= bound, "under the minimum"),
    "maximum": (lambda value, bound: value <= bound, "over the maximum"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "not over"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "not under"),
}
# What a length of each is called, and the keywords that bound it.
_LENGTHS: tuple[tuple[type[Sized], str, str, str], ...] = (
    (str, "characters", "minLength", "maxLength"),
    (list, "items", "minItems", "maxItems"),
    (dict, "fields", "minProperties", "maxProperties"),
)


def fault_of(text: str, schema: str) -> str | None:
    """Why the JSON text is no valid record of the schema, which is JSON text that the checker accepted; else None."""
    try:
        value = _parsed(text)
        return next(_Check(_schema(schema)).faults(value, _schema(schema), ""), None)
    except RecursionError:
        return "it nests too deep"
    except json.JSONDecodeError as error:
        return f"it is no JSON: {error}"
    except ValueError as error:
        return str(error)


@lru_cache(maxsize=64)
def _schema(text: str) -> Any:
    return _parsed(text)


def _parsed(text: str) -> Any:
    """The value of a JSON text, its numbers as decimals. Raises ValueError."""
    return json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_number, object_pairs_hook=_record)


def _number(text: str) -> Decimal:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too long")
    try:
        number = Decimal(text)
    except DecimalException as error:
        raise ValueError(f"the exponent of {text:.20}… is too large") from error
    if not number.is_finite():
        raise ValueError(f"{text} is no JSON")
    return number


def _record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is there twice")
    return fields


class _Check:
    def __init__(self, root: Any) -> None:
        self.root = root

    def faults(self, value: Any, schema: Any, path: str) -> Iterator[str]:
        """What is wrong with a value, each with its place."""
        where = f"at `{path}`: " if path else ""
        if isinstance(schema, bool):
            if not schema:
                yield f"{where}nothing is allowed here"
            return
        if "$ref" in schema:
            yield from self.faults(value, target_of(self.root, schema["$ref"]), path)
        yield from (f"{where}{fault}" for fault in _own_faults(value, schema))
        for inner in schema.get("allOf", ()):
            yield from self.faults(value, inner, path)
        if "anyOf" in schema and not any(self._satisfies(value, inner, path) for inner in schema["anyOf"]):
            yield f"{where}none of the alternatives fits"
        if "oneOf" in schema:
            fitting = sum(self._satisfies(value, inner, path) for inner in schema["oneOf"])
            if fitting != 1:
                yield f"{where}{f'{fitting} of the alternatives fit' if fitting else 'none of the alternatives fits'}"
        if isinstance(value, list):
            yield from self._items(value, schema, path)
        if isinstance(value, dict):
            yield from self._fields(value, schema, path)

    def _satisfies(self, value: Any, schema: Any, path: str) -> bool:
        return next(self.faults(value, schema, path), None) is None

    def _items(self, value: list[Any], schema: Any, path: str) -> Iterator[str]:
        first = schema.get("prefixItems", ())
        for index, item in enumerate(value):
            inner = first[index] if index < len(first) else schema.get("items", True)
            yield from self.faults(item, inner, f"{path}/{index}")

    def _fields(self, value: dict[str, Any], schema: Any, path: str) -> Iterator[str]:
        where = f"at `{path}`: " if path else ""
        yield from (f"{where}the field `{name}` is missing" for name in schema.get("required", ()) if name not in value)
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            inner = [found for pattern, found in patterns.items() if matcher(pattern).matches(name)]
            inner += [named[name]] if name in named else []
            for found in inner or [schema.get("additionalProperties", True)]:
                yield from self.faults(item, found, f"{path}/{name}")


def _own_faults(value: Any, schema: Any) -> Iterator[str]:
    """What is wrong with a value but for what is inside it."""
    types = schema.get("type", ())
    types = (types,) if isinstance(types, str) else types
    if types and not any(_TYPES[name](value) for name in types):
        yield f"{_shown(value)} is no {' or '.join(types)}"
    if "const" in schema and not _equal(value, schema["const"]):
        yield f"{_shown(value)} is another value than the one allowed"
    if "enum" in schema and not any(_equal(value, option) for option in schema["enum"]):
        yield f"{_shown(value)} is none of the values allowed"
    if isinstance(value, Decimal):
        for key, (holds, what) in _BOUNDS.items():
            if key in schema and not holds(value, schema[key]):
                yield f"{_shown(value)} is {what} {_shown(schema[key])}"
        if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
            yield f"{_shown(value)} is no multiple of {_shown(schema['multipleOf'])}"
    for kind, what, least, most in _LENGTHS:
        if isinstance(value, kind):
            length = len(value)
            if length < schema.get(least, 0) or length > schema.get(most, length):
                yield f"{length} {what} are too {'few' if length < schema.get(least, 0) else 'many'}"
    if isinstance(value, str):
        if "pattern" in schema and not matcher(schema["pattern"]).matches(value):
            yield f"{_shown(value)} does not match the pattern"
        if schema.get("format") in _FORMATS and not _FORMATS[schema["format"]](value):
            yield f"{_shown(value)} is no {schema['format']}"


def _equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def _is_multiple(value: Decimal, of: Decimal) -> bool:
    try:
        return not _EXACT.remainder(value, of)
    except DecimalException:
        return False


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _is_date(text: str) -> bool:
    try:
        # Python also reads a week with its day.
        return _DATE.fullmatch(text) is not None and date.fromisoformat(text) is not None
    except ValueError:
        return False


def _is_address(kind: Callable[[str], object]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            return kind(text) is not None
        except AddressValueError:
            return False

    return holds


_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(f"{_CLOCK}:[0-5][0-9](\\.[0-9]+)?(Z|[+-]{_CLOCK})")
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_IPV6 = _is_address(IPv6Address)
# The formats that are checked; of a hostname only its length is. The others are what llguidance lets through.
_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": lambda text: _TIME.fullmatch(text) is not None,
    "date-time": lambda text: _is_date(text[:10]) and text[10:11] == "T" and _TIME.fullmatch(text[11:]) is not None,
    "hostname": lambda text: 0 < len(text) <= 253,
    "ipv4": _is_address(IPv4Address),
    # Python also reads a zone.
    "ipv6": lambda text: "%" not in text and _IPV6(text),
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
}
