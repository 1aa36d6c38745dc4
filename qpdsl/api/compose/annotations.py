"""Python annotations as types of the language: those of a program's parameters and result, and of `as_`.

Lists, dataclasses, TypedDicts, pydantic models and what `Annotated` says of them are read by way of their JSON Schema,
which pydantic makes. It is imported where an annotation needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, is_typeddict

from qpdsl.api.compose import schemas, targets
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span

PLAIN = {str: "text", int: "int", float: "float", bool: "bool"}
_LISTS = (list, tuple, Sequence)
WORDS = "`str`, `int`, `float`, `bool`, `Literal[…]`, a list, a dataclass or a pydantic model"
_MESSAGES = object()

# A parameter that is a conversation: turns in their order, `{"role": "user", "content": "…"}`.
Messages = Annotated[list[dict[str, str]], _MESSAGES]


class Declares(Protocol):
    """What the schemas that an annotation needs are added to: the call of a stage, or the head of a program."""

    def schema(
        self, name: str, data: Mapping[str, Any] | None, path: str | None, span: Span, *, closed: bool
    ) -> None: ...

    def add_schema(self, schema: ast.Schema, span: Span) -> None: ...

    def refuse(self, message: str, span: Span) -> Exception: ...


def type_of(annotation: Any, call: Declares, span: Span) -> ast.TypeExpr | None:
    """The type that an annotation stands for; None where the language has no such type.

    Schemas that it needs join those of the program. Raises QpError where one of them cannot be.
    """
    if annotation in (targets.Model,):
        return ast.TypeRef("model", span=span)
    if get_origin(annotation) in _LISTS and get_args(annotation)[:1] == (targets.Model,):
        return ast.ListType(ast.TypeRef("model", span=span), span=span)
    if isinstance(annotation, type) and annotation in PLAIN:
        return ast.TypeRef(PLAIN[annotation], span=span)
    if get_origin(annotation) is Annotated and _MESSAGES in annotation.__metadata__:
        return ast.TypeRef("messages", span=span)
    if get_origin(annotation) is Literal:
        options = get_args(annotation)
        texts = tuple(option for option in options if isinstance(option, str))
        return ast.ChoiceType(texts, span=span) if len(texts) == len(options) else None
    if is_record(annotation):
        return ast.TypeRef(record_schema(annotation, call, span), span=span)
    if members := _records(annotation):
        names = (record_schema(one, call, span) for one in members)
        return ast.UnionType(tuple(ast.TypeRef(name, span=span) for name in names), span=span)
    if get_origin(annotation) in _LISTS and (item := _item(annotation)) is not None and _records(item):
        union = type_of(item, call, span)
        return None if union is None else ast.ListType(union, span=span)
    if get_origin(annotation) is not Annotated and get_origin(annotation) not in _LISTS:
        return None
    document = _document(annotation, call, span)
    found = None if document is None else schemas.type_of(document, span)
    if found is None:
        return None
    type_, declared = found
    for schema in declared:
        call.add_schema(schema, span)
    return type_


def is_record(annotation: Any) -> bool:
    """Whether an annotation names the fields of a record: a pydantic model, a dataclass or a TypedDict."""
    is_model = isinstance(annotation, type) and callable(getattr(annotation, "model_json_schema", None))
    return is_model or (isinstance(annotation, type) and is_dataclass(annotation)) or is_typeddict(annotation)


def record_schema(annotation: Any, call: Declares, span: Span) -> str:
    """Adds the schema of a record to the program's, and returns its name. Raises QpError."""
    name = _schema_name(annotation)
    document = _document(annotation, call, span)
    if document is None:
        raise call.refuse(f"`{name}` has no JSON schema", span)
    call.schema(name, document, None, span, closed=True)
    return name


def _records(annotation: Any) -> tuple[Any, ...]:
    """The records that a union is of; none where the annotation is no such union."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return members if all(map(is_record, members)) else ()


def _item(annotation: Any) -> Any:
    """What a list is of; None for a tuple of several things."""
    args = [arg for arg in get_args(annotation) if arg is not Ellipsis]
    return args[0] if len(args) == 1 else None


def _schema_name(annotation: Any) -> str:
    # A generic model is called `Box[int]`.
    return re.sub(r"\W+", "_", annotation.__name__).strip("_")


def reader(annotation: Any) -> Callable[[Any], Any] | None:
    """What makes a value of the language one of Python; None where they are the same."""
    plain = isinstance(annotation, type) and (annotation in PLAIN or issubclass(annotation, Mapping | targets.Model))
    if plain or get_origin(annotation) in (Literal, dict, Mapping) or annotation is Any:
        return None
    if members := _records(annotation):
        readers = {_schema_name(one): reader(one) or dict for one in members}
        return lambda value: readers[value["kind"]]({name: part for name, part in value.items() if name != "kind"})
    if get_origin(annotation) in _LISTS and _records(item := _item(annotation)):
        of_each = reader(item) or dict
        return lambda values: [of_each(value) for value in values]
    if not is_record(annotation) and get_origin(annotation) not in (*_LISTS, Annotated):
        return None
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return adapter.validate_python


def _document(annotation: Any, call: Declares, span: Span) -> Mapping[str, Any] | None:
    """The JSON Schema of an annotation; None where pydantic makes none."""
    from pydantic import PydanticUserError, TypeAdapter

    name = getattr(annotation, "__name__", str(annotation))
    try:
        return TypeAdapter(annotation).json_schema()
    except PydanticUserError as error:
        raise call.refuse(f"`{name}` has no JSON schema: {str(error).splitlines()[0]}", span) from error
    except (NameError, TypeError, ValueError) as error:
        raise call.refuse(f"`{name}` has no JSON schema: {error}", span) from error
