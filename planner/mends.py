"""What to write instead of an expression of the wrong type, where that can be told."""

from __future__ import annotations

import re
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.format import format_expr
from qpdsl.planner.scope import NUMBERS, Scope, Type, param_type

_NUMBER = re.compile(r"-?(\d+(\.\d+)?|\.\d+)")


def a(type_: Type) -> str:
    """A type with its article."""
    return "none" if type_ == "none" else f"{'an' if type_ == 'int' else 'a'} {type_}"


def retyped(expr: ast.Expr, actual: Type, wanted: frozenset[str], scope: Scope) -> dict[str, Any]:
    """`help` and `edit` of a diagnostic: a value without its quotes or with them, a whole number, a comparison."""
    match expr:
        case ast.Template(parts=(str(text),)):
            known = text in scope.columns or text in scope.params
            if (wanted & NUMBERS and _NUMBER.fullmatch(text)) or (known and _type(text, scope) in wanted):
                return _write(expr, text)
        case ast.Literal(value=bool()) | ast.Literal(value=None):
            return {}
        case ast.Literal(value=float(value)) if "int" in wanted and value.is_integer():
            return _write(expr, str(int(value)))
        case ast.Literal() if wanted == {"text"}:
            return _write(expr, f'"{format_expr(expr)}"')
        case ast.Name(id=name) if wanted == {"bool"} and actual in NUMBERS:
            return {"help": f"compare it with a number, as in `{name} > 0`"}
        case ast.Name(id=name) if wanted == {"bool"} and actual == "text":
            return {"help": f"compare it, as in `{name} != none`, or search it: `{name} matches /…/`"}
    return {}


def _type(name: str, scope: Scope) -> Type:
    return scope.columns[name].type if name in scope.columns else param_type(scope.params[name])


def _write(expr: ast.Expr, text: str) -> dict[str, Any]:
    return {"help": f"write `{text}`", "edit": Edit(expr.span, text)}
