"""Schemas, declared inline or in files, compiled to JSON Schema and checked by llguidance."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.files import FileRefused, Files
from qpdsl.grammar.format.unparse import format_type
from qpdsl.grammar.literals import regex
from qpdsl.grammar.literals.regex import whole_text
from qpdsl.grammar.source import MAX_SOURCE_BYTES, Span
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import TYPES
from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import (
    BOUNDS,
    FORMATS,
    MAX_DEPTH,
    Document,
    beyond_bounds,
    children,
    faults,
    nested,
    notes,
    to_text,
)
from qpdsl.planner.names.unknown import is_alias, unknown_type

# A message names up to so many words.
_SHOWN = 6
_PLAIN: Mapping[str, str] = {"text": "string", "int": "integer", "float": "number", "bool": "boolean"}


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A schema that outputs can be held to. Two with the same source are equal.

    `source` is the document as text, `constraint` what llguidance is given.
    """

    name: str = field(compare=False)
    source: str
    document: Document = field(compare=False, repr=False)
    constraint: str = field(compare=False, repr=False)

    @classmethod
    def of(cls, name: str, document: Document) -> CompiledSchema:
        return cls(name, to_text(document), document, to_text(as_constraint(document)))


@dataclass(slots=True)
class Schemas:
    """The schemas that one file can name: those that it declares, and those of the files that it uses.

    `used` are those of other files by the names that they have there too, `named` those of files that are used `as
    NAME`, each with its name in its own file. `complete` says that no declaration is missing because of an error
    elsewhere. `gaps` are the parts that the parser left out; a schema with a gap inside is not known. `warnings` are
    about those that were compiled.
    """

    declared: Mapping[str, ast.Schema]
    files: Files
    report: Callable[[Diagnostic], None]
    gaps: tuple[Span, ...] = ()
    used: dict[str, Schemas] = field(default_factory=dict)
    named: dict[str, tuple[Schemas, str]] = field(default_factory=dict)
    complete: bool = True
    warnings: list[Diagnostic] = field(default_factory=list)
    _compiled: dict[str, CompiledSchema | None] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _types: dict[int, CompiledSchema | None] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.declared or name in self.used or name in self.named

    def names(self) -> tuple[str, ...]:
        return (*self.declared, *self.used, *self.named)

    def compile_all(self) -> None:
        """Reports every fault of the schemas that the file declares."""
        for name in self.declared:
            self.get(name)

    def get(self, name: str) -> CompiledSchema | None:
        """A schema by its name; None where there is none, or one with an error, which is reported where it stands."""
        if name in self.declared:
            if name not in self._compiled:
                self._open.append(name)
                self._compiled[name] = None
                self._compiled[name] = self._compile(self.declared[name])
                self._open.pop()
            return self._compiled[name]
        if name in self.named:
            schemas, own = self.named[name]
            return schemas.get(own)
        return self.used[name].get(name) if name in self.used else None

    def compile_type(self, type_: ast.TypeExpr) -> CompiledSchema | None:
        """The schema of values of a type; None where it has an error, which is reported once."""
        if id(type_) not in self._types:
            self._types[id(type_)] = _InlineCompiler(self, format_type(type_), type_.span, type_).run()
        return self._types[id(type_)]

    def _compile(self, schema: ast.Schema) -> CompiledSchema | None:
        if schema.type is not None:
            compiled = _InlineCompiler(self, schema.name, schema.name_span, schema.type).run()
            return None if any(schema.span.start <= gap.start < schema.span.end for gap in self.gaps) else compiled
        span = schema.path_span or schema.span
        path = schema.path or ""
        try:
            text = self.files.read(path)
        except FileRefused as why:
            self.report(Diagnostic("QP228", str(why), span, "cannot be read"))
            return None
        return self._from_file(schema.name, path, text, span)

    def _from_file(self, name: str, path: str, text: str, span: Span) -> CompiledSchema | None:
        try:
            document = json.loads(text)
        except RecursionError:
            self.report(Diagnostic("QP306", f"`{path}` nests too deep", span))
            return None
        except ValueError as error:
            where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            self.report(Diagnostic("QP306", f"`{path}` is not JSON", span, where))
            return None
        if not isinstance(document, dict):
            self.report(Diagnostic("QP306", f"`{path}` holds no JSON Schema: that is an object", span))
            return None
        reasons = tuple(f"at `{where}`: {why}" if where.startswith("/") else why for where, why in faults(document))
        if not reasons:
            schema = CompiledSchema.of(name, document)
            why_not = refusal("json_schema", schema.constraint)
            if why_not is None:
                self._warn(path, document, span)
                return schema
            reasons = (_located(document, why_not),)
        self.report(Diagnostic("QP306", f"`{path}` is a schema that no output can be held to", span, notes=reasons))
        return None

    def _warn(self, path: str, document: Document, span: Span) -> None:
        """Says which words of a schema from a file hold no output to anything."""
        places: dict[str, str] = {}
        for where, word in notes(document):
            places.setdefault(word, where)
        if places:
            words = ", ".join(f"`{word}`" for word in [*places][:_SHOWN]) + (", …" if len(places) > _SHOWN else "")
            first = next(iter(places.values()))
            where = f"at `{first}`" if first.startswith("/") else "at the top"
            self.warnings.append(
                Diagnostic(
                    "QP237",
                    f"`{path}` has words that hold no output to anything: {words}",
                    span,
                    notes=(f"the first stands {where}",),
                    severity="warning",
                )
            )

    def is_open(self, name: str) -> bool:
        """Whether the schema is being compiled: a reference to it now is one to itself."""
        owner, own = self._owner(name)
        return own in owner._open

    def cycle(self, name: str) -> str:
        """The chain of references from an open schema back to itself, the part inside its own file."""
        owner, own = self._owner(name)
        names = owner._open
        return " → ".join(f"`{link}`" for link in (*names[names.index(own) :], own))

    def _owner(self, name: str) -> tuple[Schemas, str]:
        """The schemas of the file that declares it, and its name there."""
        if name in self.declared:
            return self, name
        return self.named[name] if name in self.named else (self.used[name], name)

    @property
    def depth(self) -> int:
        return len(self._open)


class _InlineCompiler:
    """Compiles one type, such as that of `schema NAME { … }`, to JSON Schema.

    Each field is checked on its own, so that a fault has a span. `span` is that of the `name`.
    """

    def __init__(self, schemas: Schemas, name: str, span: Span, type_: ast.TypeExpr) -> None:
        self.schemas = schemas
        self.name = name
        self.span = span
        self.type = type_
        self.definitions: Document = {}
        self.size = 0
        self.sound = True

    def run(self) -> CompiledSchema | None:
        document = self._type(self.type)
        if self.definitions:
            document["$defs"] = self.definitions
        if not self.sound:
            return None
        schema = CompiledSchema.of(self.name, document)
        why_not = refusal("json_schema", schema.constraint)
        if why_not:
            self._fault("QP306", f"llguidance refuses `{self.name}`: {why_not}", self.span)
            return None
        return schema

    def _fault(self, code: str, message: str, span: Span, label: str = "", **more: object) -> None:
        self.sound = False
        self.schemas.report(Diagnostic(code, message, span, label, **more))  # type: ignore[arg-type]

    def _record(self, record: ast.RecordType) -> Document:
        declared: dict[str, ast.Field] = {}
        properties: Document = {}
        for field_ in record.fields:
            first = declared.setdefault(field_.name, field_)
            if first is not field_:
                why = (Label(first.name_span, "the first"),)
                message = f"field `{field_.name}` is declared twice"
                self._fault("QP208", message, field_.name_span, "again", secondary=why)
            else:
                properties[field_.name] = self._type(field_.type)
        required = [field_.name for field_ in declared.values() if not field_.optional]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _type(self, type_: ast.TypeExpr) -> Document:
        match type_:
            case ast.TypeRef(name=name):
                return {"type": _PLAIN[name]} if name in TYPES else self._reference(type_)
            case ast.RangeType():
                return self._range(type_)
            case ast.TextType():
                return self._text(type_)
            case ast.ChoiceType(options=options):
                return {"type": "string", "enum": list(options)}
            case ast.ListType(item=item, low=low, high=high):
                counts = {"minItems": low, "maxItems": high}
                bounds = {key: count for key, count in counts.items() if count is not None}
                return {"type": "array", "items": self._type(item), **bounds}
            case ast.RecordType():
                return self._record(type_)
            case ast.UnionType(members=members):
                return {"anyOf": [self._member(type_, at) for at in range(len(members))]}

    def _member(self, union: ast.UnionType, at: int) -> Document:
        """One schema of a union: its records with a field `kind` before the others."""
        ref, before = union.members[at], union.members[:at]
        if union is self.type:
            return self._record_of_kind(ref, before, f"#/anyOf/{at}")
        name, place = ref.name, f"{ref.name}:kind"
        if self.schemas.is_open(name) if name in self.schemas else False:
            return self._reference(ref)
        if place not in self.definitions or ref in before:
            self.definitions[place] = self._record_of_kind(ref, before, f"#/$defs/{place}")
        return {"$ref": f"#/$defs/{place}"}

    def _record_of_kind(self, ref: ast.TypeRef, before: tuple[ast.TypeRef, ...], path: str) -> Document:
        """The schema's record, at this path of the document, with its name in a field `kind`."""
        name = ref.name
        schema = self.schemas.get(name) if name in self.schemas else None
        if name not in self.schemas and (self.schemas.complete or is_alias(name)):
            self.schemas.report(unknown_type(ref, self.schemas.names()))
        if schema is None:
            self.sound = False
            return {}
        self.size += len(schema.source)
        document = nested(schema.document, path)
        fields = document.get("properties", {})
        if any(ref == other for other in before):
            self._fault("QP208", f"`{name}` stands twice in this union", ref.span, "again")
        elif document.get("type") != "object":
            self._fault("QP306", f"a union is of records, and `{name}` is none", ref.span)
        elif "kind" in fields:
            message = f"a union adds the field `kind` to its records, and `{name}` has one"
            self._fault("QP208", message, ref.span, help="give the field another name")
        fields = {"kind": {"type": "string", "enum": [name]}, **fields}
        return {**document, "properties": fields, "required": ["kind", *document.get("required", ())]}

    def _range(self, type_: ast.RangeType) -> Document:
        both = {"minimum": type_.low, "maximum": type_.high}
        bounds = {key: bound for key, bound in both.items() if bound is not None}
        document: Document = {"type": _PLAIN[type_.name], **bounds}
        for bound in bounds.values():
            if beyond_bounds(bound, whole=type_.name == "int"):
                message = f"the bound {bound} is beyond what a model can be held to"
                help = "hold it as a text, `text(pattern=/…/)`, or leave the bound out"
                if type_.name == "float" and abs(bound) <= sys.float_info.max:
                    help = f"write the bound as a float: `{float(bound)}`"
                self._fault("QP285", message, type_.span, "in this type", notes=(BOUNDS,), help=help)
                return document
        return self._leaf(document, type_.span)

    def _text(self, type_: ast.TextType) -> Document:
        document: Document = {"type": "string"}
        if type_.min_length is not None:
            document["minLength"] = type_.min_length
        if type_.max_length is not None:
            document["maxLength"] = type_.max_length
        if type_.pattern is not None:
            if regex.check(type_.pattern.pattern, 0) is not None:  # the parser has reported it
                self.sound = False
                return document
            document["pattern"] = whole_text(type_.pattern.pattern)
        if type_.format is not None:
            document["format"] = type_.format
            if type_.format not in FORMATS:
                self._unknown_format(type_, type_.format)
                return document
        return self._leaf(document, type_.span)

    def _unknown_format(self, type_: ast.TextType, name: str) -> None:
        near = closest(name, FORMATS)
        help = f'write `format="{near}"`' if near else None
        notes = (f"formats: {', '.join(FORMATS)}",)
        self._fault("QP309", f"unknown format `{name}`", type_.span, "in this type", notes=notes, help=help)

    def _leaf(self, document: Document, span: Span) -> Document:
        why_not = refusal("json_schema", to_text(as_constraint(document)))
        if why_not:
            self._fault("QP306", f"no output can be held to this type: {_reason(why_not)}", span)
        return document

    def _reference(self, ref: ast.TypeRef) -> Document:
        name, schemas = ref.name, self.schemas
        if name not in schemas:
            if schemas.complete or is_alias(name):
                schemas.report(unknown_type(ref, (*TYPES, *schemas.names())))
            self.sound = False
        elif schemas.is_open(name):
            notes = ("an output held to it could never end",)
            self._fault("QP223", f"a schema cannot hold itself: {schemas.cycle(name)}", ref.span, notes=notes)
        elif schemas.depth > MAX_DEPTH:
            self._fault("QP103", f"schemas refer to one another over {MAX_DEPTH} deep", ref.span, "one too many")
        elif name not in self.definitions:
            self._embed(name, ref)
        return {"$ref": f"#/$defs/{name}"}

    def _embed(self, name: str, ref: ast.TypeRef) -> None:
        schema = self.schemas.get(name)
        if schema is None:
            self.sound = False
            return
        self.size += len(schema.source)
        if self.size > MAX_SOURCE_BYTES:
            self._fault("QP306", "the schemas that this one refers to take over 1 MiB", ref.span)
            return
        self.definitions[name] = nested(schema.document, f"#/$defs/{name}")


def _reason(why_not: str) -> str:
    """llguidance's message without the parts that only its developers can use."""
    text = why_not.removeprefix("Unsatisfiable schema: ")
    if text.startswith(("Failed to generate regex", "regex parse error")):
        return "llguidance has no way to hold a number to bounds of this size"
    return "nothing satisfies it" if text.startswith("Regex is empty") else text.split(":  (")[0]


def _located(document: Document, why_not: str) -> str:
    """The message, with the path of the innermost schema that is refused by itself."""
    path, schema = "", document
    definitions: Document = {key: document[key] for key in ("$defs", "definitions") if key in document}
    while True:
        for step, inner in children(schema):
            why_inner = refusal("json_schema", to_text(as_constraint({**definitions, **inner})))
            if why_inner and not why_inner.startswith("Pointer"):
                path, schema, why_not = f"{path}/{step}", inner, why_inner
                break
        else:
            return f"at `{path}`: {_reason(why_not)}" if path else _reason(why_not)
