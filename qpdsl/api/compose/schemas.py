"""Schemas from pydantic models and from JSON Schema as data.

A schema that the language can express becomes a declaration, so that a program prints as it would be written by hand.
Any other schema becomes a file of the program, kept in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.literals import regex
from qpdsl.grammar.literals.regex import whole_text
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import RESERVED
from qpdsl.planner.names import json_schema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Keys that say nothing about what a document may be.
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$defs", "$schema", "$id"})


class _Beyond(Exception):
    """A schema that the language's own cannot express."""


def declarations(name: str, document: Mapping[str, Any], span: Span, *, closed: bool) -> tuple[ast.Schema, ...]:
    """The schema as the language's own, the schemas that it refers to first; empty where it cannot be expressed.

    `closed` says that a document has no field but those that the schema names, whether the schema says so or not.
    """
    try:
        return tuple(_Declared(name, document, span, closed).all())
    except _Beyond:
        return ()


def type_of(document: Mapping[str, Any], span: Span) -> tuple[ast.TypeExpr, tuple[ast.Schema, ...]] | None:
    """The type of a schema's documents, and the schemas that it names; None where the language has no such type."""
    declared = _Declared("", document, span, True)
    try:
        root = {key: part for key, part in document.items() if key != "$defs"}
        return declared.type(root), tuple(declared.declared.values())
    except _Beyond:
        return None


def text(document: Mapping[str, Any], *, closed: bool) -> str:
    """The schema as the text of a file."""
    return json.dumps(json_schema.closed(document) if closed else document, ensure_ascii=False, indent=2)


class _Declared:
    def __init__(self, name: str, document: Mapping[str, Any], span: Span, closed: bool) -> None:
        self.name, self.document, self.span, self.closed = name, document, span, closed
        self.defined: Mapping[str, Mapping[str, Any]] = document.get("$defs", {})
        self.declared: dict[str, ast.Schema] = {}
        self.open: list[str] = []

    def all(self) -> Iterator[ast.Schema]:
        own = self.declare(self.name, self.document)
        yield from self.declared.values()
        if self.name not in self.declared:
            yield own

    def declare(self, name: str, document: Mapping[str, Any]) -> ast.Schema:
        if not _is_name(name):
            raise _Beyond
        return ast.Schema(name, self.record(document), span=self.span, name_span=self.span)

    def record(self, document: Mapping[str, Any]) -> ast.RecordType:
        rest = _parts(document, "type", "properties", "required", "additionalProperties")
        open_ = rest.get("additionalProperties", not self.closed)
        if rest.get("type") != "object" or not rest.get("properties") or open_ is not False:
            raise _Beyond
        required = rest.get("required", [])
        fields = []
        for name, value in rest["properties"].items():
            if not _NAME.fullmatch(name):
                raise _Beyond
            optional = name not in required
            type_ = self.type(_not_null(value) if optional else value)
            fields.append(ast.Field(name, type_, optional, span=self.span, name_span=self.span))
        return ast.RecordType(tuple(fields), span=self.span)

    def type(self, value: Mapping[str, Any]) -> ast.TypeExpr:
        if "$ref" in value:
            return self.reference(_parts(value, "$ref")["$ref"])
        if "enum" in value or "const" in value:
            rest = _parts(value, "enum", "const", "type")
            options = rest.get("enum", [rest.get("const")])
            if not options or not all(isinstance(option, str) for option in options):
                raise _Beyond
            return ast.ChoiceType(tuple(options), span=self.span)
        match value.get("type"):
            case "string":
                return self.text(_parts(value, "type", "minLength", "maxLength", "format", "pattern"))
            case "integer" | "number" as kind:
                rest = _parts(value, "type", "minimum", "maximum")
                name = "int" if kind == "integer" else "float"
                low, high = rest.get("minimum"), rest.get("maximum")
                if low is None and high is None:
                    return ast.TypeRef(name, span=self.span)
                return ast.RangeType(name, low, high, span=self.span)  # type: ignore[arg-type]
            case "boolean":
                _parts(value, "type")
                return ast.TypeRef("bool", span=self.span)
            case "array":
                rest = _parts(value, "type", "items", "minItems", "maxItems")
                item = self.type(rest.get("items", {}))
                return ast.ListType(item, rest.get("minItems"), rest.get("maxItems"), span=self.span)
            case "object":
                return self.record(value)
        raise _Beyond

    def text(self, rest: Mapping[str, Any]) -> ast.TypeExpr:
        if set(rest) == {"type"}:
            return ast.TypeRef("text", span=self.span)
        pattern = rest.get("pattern")
        if pattern is not None and (regex.check(pattern, 0) is not None or "/" in pattern or "\n" in pattern):
            raise _Beyond
        # JSON Schema searches for a pattern, the language holds the whole text to it.
        if pattern is not None and whole_text(pattern) != pattern:
            raise _Beyond
        syntax = None if pattern is None else ast.Regex(pattern, span=self.span)
        return ast.TextType(rest.get("minLength"), rest.get("maxLength"), rest.get("format"), syntax, span=self.span)

    def reference(self, path: str) -> ast.TypeExpr:
        name = path.removeprefix("#/$defs/")
        if name in self.open or name not in self.defined or name == self.name:
            raise _Beyond
        definition = self.defined[name]
        if definition.get("type") != "object":
            return self.type(definition)
        if name not in self.declared:
            self.open.append(name)
            self.declared[name] = self.declare(name, definition)
            self.open.pop()
        return ast.TypeRef(name, span=self.span)


def _parts(value: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """The keys that restrict a document. Raises _Beyond where one is not among the known ones."""
    rest = {key: part for key, part in value.items() if key not in _NOTES}
    if not set(rest) <= set(known):
        raise _Beyond
    return rest


def _not_null(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a field that may be absent, for where it is present: `int | None` with a default is `int`."""
    options = [option for option in value.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1 and len(value["anyOf"]) == 2 and set(_parts(value, "anyOf")) == {"anyOf"}:
        option: Mapping[str, Any] = options[0]
        return option
    return value


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text not in RESERVED
