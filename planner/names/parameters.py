"""The parameters that a program declares: their types, what their values are held to, and which of them are models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.format.unparse import format_param_type
from qpdsl.grammar.words import COLUMNS, PARAMETER_TYPES, ROLES, THOUGHT_FIELDS, TYPES, Type
from qpdsl.planner.names.json_schema import Document, to_text, value_type
from qpdsl.planner.names.modules import Module, no_duplicates
from qpdsl.planner.plan.logical import Parameter
from qpdsl.planner.plan.options import constant, left_out
from qpdsl.planner.values.value import fits

# A conversation: turns in their order, as chat APIs have them. What each role may have is checked where it is used.
MESSAGES: Document = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "role": {"type": "string", "enum": [*ROLES, "tool"]},
            "content": {"type": ["string", "null"]},
            **{name: {"type": ["string", "null"]} for name in (*THOUGHT_FIELDS, "tool_call_id", "name")},
            "tool_calls": {"type": ["array", "null"]},
        },
        "required": ["role", "content"],
        "additionalProperties": False,
    },
}


@dataclass(slots=True)
class Parameters:
    """`types` are those of the values, by name; "unknown" where the declared one has an error. `models` are no values.

    `all` holds those that a caller gives values for, each with what they are held to.
    """

    types: dict[str, Type] = field(default_factory=dict)
    models: dict[str, ast.Param] = field(default_factory=dict)
    all: tuple[Parameter, ...] = ()


def parameters(module: Module, program: ast.Program, report: Callable[[Diagnostic], None]) -> Parameters:
    """What a program's parameters are. Reports what is wrong with their declarations."""
    found = Parameters()
    values: list[Parameter] = []
    for param in program.params:
        if param.name in COLUMNS:
            message = f"`{param.name}` is a column of every row and cannot be a parameter too"
            report(Diagnostic("QP208", message, param.name_span, help="rename the parameter"))
        if is_model(param, module):
            found.models.setdefault(param.name, param)
            _check_model(param, module, report)
            continue
        type_, document = _declared(param, module, report)
        found.types.setdefault(param.name, type_)
        default = _default(param, type_, document, program.like, report)
        form = format_param_type(param)
        schema = None if document is None else to_text(document)
        values.append(Parameter(param.name, type_, default, param.optional, form, schema))
    no_duplicates("parameter", program.params, report)
    found.all = tuple(values)
    return found


def lists_models(param: ast.Param) -> bool:
    """Whether a parameter that stands for no value stands for several models."""
    return isinstance(param.type, ast.ListType)


def is_model(param: ast.Param, module: Module) -> bool:
    """Whether a parameter stands for a model, or for a list of them, and not for a value."""
    type_ = param.type
    if isinstance(type_, ast.ListType) and type_.low is type_.high is None:
        type_ = type_.item
    return isinstance(type_, ast.TypeRef) and type_.name == "model" and "model" not in module.schemas


def _declared(param: ast.Param, module: Module, report: Callable[[Diagnostic], None]) -> tuple[Type, Document | None]:
    """The type of a parameter's values, and the schema that they satisfy; None where the type says all."""
    type_ = param.type
    if isinstance(type_, ast.TypeRef) and type_.name in TYPES:
        return type_.name, None
    if isinstance(type_, ast.TypeRef) and type_.name == "messages" and type_.name not in module.schemas:
        return "messages", MESSAGES
    schema = module.compiled(type_, PARAMETER_TYPES, report)
    return ("unknown", None) if schema is None else (value_type(schema.document), schema.document)


def _default(
    param: ast.Param,
    type_: Type,
    document: Document | None,
    like: ast.Like | None,
    report: Callable[[Diagnostic], None],
) -> ast.Expr | None:
    """The value of a parameter that is not given; None where it must be."""
    if param.default is None:
        return left_out(param, like)
    value = constant(param.default)
    if value is None:
        message = "a default is a value that is written out: a number, a string, `true`, `false`, or a list of them"
        report(Diagnostic("QP213", message, param.default.span, "this must be worked out"))
        return None
    actual = type_of_constant(value)
    if actual == "none" and param.optional:
        return value
    if type_ != "unknown" and (actual == "none" or not fits(actual, "[record]" if type_ == "messages" else type_)):
        shown = format_param_type(param)
        message = f"`{param.name}` is declared {shown}, but its default is {actual}"
        why = (Label(param.type.span, f"declared {shown}"),)
        help = f"a parameter that may be none is declared `{param.name}: {shown}?`" if actual == "none" else None
        report(Diagnostic("QP213", message, param.default.span, f"this is {actual}", why, help=help))
    elif isinstance(param.type, ast.ChoiceType) and isinstance(value, ast.Template):
        text = "".join(part for part in value.parts if isinstance(part, str))
        if text not in param.type.options:
            message = f'`{param.name}` is one of its choices, but its default is "{text}"'
            why = (Label(param.type.span, "these are the choices"),)
            report(Diagnostic("QP213", message, param.default.span, "none of them", why))
    return value


def type_of_constant(value: ast.Expr) -> Type:
    """The type of a value that is written out."""
    match value:
        case ast.Literal(value=None):
            return "none"
        case ast.Literal(value=plain):
            return type(plain).__name__
        case ast.ListLiteral(items=items):
            types = {type_of_constant(item) for item in items}
            return f"[{types.pop() if len(types) == 1 else 'float' if types == {'int', 'float'} else 'unknown'}]"
        case ast.RecordLiteral():
            return "record"
    return "text"


def _check_model(param: ast.Param, module: Module, report: Callable[[Diagnostic], None]) -> None:
    if param.optional:
        message, help = "a model is no value that may be none", "leave the `?` out"
        report(Diagnostic("QP361", message, param.type.span, help=help))
    default = param.default
    if default is None:
        return
    if lists_models(param) and not (isinstance(default, ast.ListLiteral) and default.items):
        report(Diagnostic("QP361", f"`{param.name}` takes a list of models", default.span, "no list of models"))
        return
    for value in default.items if isinstance(default, ast.ListLiteral) and lists_models(param) else (default,):
        is_id = isinstance(value, ast.Template) and value.parts and all(isinstance(p, str) for p in value.parts)
        if not is_id and not (isinstance(value, ast.Name) and value.id in module.models):
            message = "the default of a model is a quoted id, or the name of a model that the file declares"
            notes = (f"models: {', '.join(module.models)}",) if module.models else ("the file declares no model",)
            report(Diagnostic("QP361", message, value.span, "no model", notes=notes))
