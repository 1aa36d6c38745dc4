"""Types of expressions, and what to write instead of an expression of the wrong type.

What an expression may read depends on where it stands: an option reads parameters only; `by` and `weight` the columns
of one row; `until` columns inside aggregates; `return` both, and there a bare column is the first row's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import FINISHES, FUNCTIONS, NUMBERS, TYPES, Type
from qpdsl.planner.names.scope import Scope, param_type, stage_word
from qpdsl.planner.names.unknown import is_alias

Reads = OneOf["parameters", "row", "aggregates", "first row"]
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_FUNCTION_ALIASES = {"avg": "mean", "average": "mean", "length": "len"}
# What other languages put between braces: a name, with spaces around it, an operator, an index, a call or a format.
_EXPRESSION = re.compile(
    r"""\s*(?P<name>[A-Za-z_]\w*)\s*(?:\(\s*(?P<argument>[A-Za-z_]\w*).*|[-+*/%.\[!|<>=].*|:[\d.<>^+,=a-z%]+)?\s*"""
)
_NUMBER = re.compile(r"-?(\d+(\.\d+)?|\.\d+)")


def fits(actual: Type, wanted: frozenset[str] | str) -> bool:
    """Whether a value of one type can stand where another is wanted: an int is a float too."""
    wanted = frozenset({wanted}) if isinstance(wanted, str) else wanted
    return actual == "unknown" or actual in wanted or (actual == "int" and "float" in wanted)


@dataclass(slots=True)
class Typer:
    """Infers the types of one stage's expressions, and reports what is wrong with them.

    `place` names the option or clause for messages, such as "`n`" or "`by`"; by default the stage. `upto` is the offset
    up to which a gap in the program counts as before the expression. `_aggregate` is the aggregate function around the
    current expression.
    """

    scope: Scope
    stage: ast.Stage
    reads: Reads
    place: str = ""
    upto: int | None = None
    _aggregate: str | None = None

    def __post_init__(self) -> None:
        self.place = self.place or f"`{stage_word(self.stage)}`"

    def expect(self, expr: ast.Expr, wanted: frozenset[str] | str, what: str) -> Type:
        """The type of `expr`; "unknown", and reported, where it is not in `wanted`, which is `what` in words."""
        actual = self.type(expr)
        if fits(actual, wanted):
            return actual
        why: tuple[Label, ...] = ()
        if isinstance(expr, ast.Name) and expr.id in self.scope.params and expr.id not in self.scope.columns:
            param = self.scope.params[expr.id]
            # A parameter of a `-e` pipeline is not declared; its first use gives its type.
            word = "declared" if param.type.span != param.name_span else "taken for"
            if param.type.span != expr.span:
                why = (Label(param.type.span, f"{word} {actual}"),)
        self._wrong(expr, actual, wanted, f"{self.place} takes {what}", why)
        return "unknown"

    def _wrong(
        self,
        expr: ast.Expr,
        actual: Type,
        wanted: frozenset[str] | str,
        rule: str,
        why: tuple[Label, ...] = (),
    ) -> None:
        wanted = frozenset({wanted}) if isinstance(wanted, str) else wanted
        fix = {} if self.reads == "aggregates" else _fix(expr, actual, wanted, self.scope)
        shown = _with_article(actual)
        self.scope.error("QP209", f"{rule}, found {shown}", expr.span, f"this is {shown}", secondary=why, **fix)

    def type(self, expr: ast.Expr) -> Type:
        """The type of `expr`; "unknown" where it has an error, which is reported."""
        match expr:
            case ast.Literal(value=value):
                return "none" if value is None else type(value).__name__  # type: ignore[return-value]
            case ast.Template(parts=parts):
                for part in parts:
                    if isinstance(part, ast.Name):
                        self._name(part)
                for braced in expr.braced:
                    self._warn_braced(braced)
                return "text"
            case ast.Name():
                return self._name(expr)
            case ast.Matches(subject=subject):
                if isinstance(subject, ast.Name) and self._bare(subject):
                    self._needs_aggregate(subject, Edit(expr.span, f"any({format_expr(expr)})"))
                else:
                    self._operand(subject, "text", "`matches` searches a text")
                return "bool"
            case ast.Unary(op="not", operand=operand):
                self._operand(operand, "bool", "`not` takes a bool")
                return "bool"
            case ast.Unary(operand=operand):
                return self._operand(operand, NUMBERS, "`-` takes a number")
            case ast.Binary():
                return self._binary(expr)
            case ast.Apply():
                return self._apply(expr)

    def _warn_braced(self, braced: ast.Braced) -> None:
        """Warns of braces around what reads like an expression over a name that is known here."""
        found = _EXPRESSION.fullmatch(braced.text)
        known = {*self.scope.params, *(() if self.reads == "parameters" else self.scope.columns)}
        if found is None or not any(word in known for word in (found["name"], found["argument"])):
            return
        message = f"`{{{braced.text}}}` stays as it is: between braces a name alone is replaced"
        help, edit = "a brace that is meant is written `\\{`; a value that is worked out can be a parameter", None
        if braced.text.strip() == found["name"]:
            help, edit = f"write `{{{found['name']}}}`", Edit(braced.span, f"{{{found['name']}}}")
        label = "no value is put in here"
        self.scope.report(Diagnostic("QP268", message, braced.span, label, help=help, edit=edit, severity="warning"))

    def _name(self, name: ast.Name) -> Type:
        if self.reads == "parameters":
            return self.scope.parameter(name, self.place)
        if self._bare(name):
            type_ = self.scope.columns[name.id].type
            choice = {"bool": "all", "int": "max", "float": "max"}.get(type_)
            self._needs_aggregate(name, Edit(name.span, f"{choice}({name.id})") if choice else None)
            return "unknown"
        numeric = self._aggregate in ("min", "max", "mean") or self.place in ("`by`", "`weight`")
        return self.scope.column(name, self.stage, upto=self.upto, role="score" if numeric else None)

    def _bare(self, name: ast.Name) -> bool:
        """Whether a column stands outside of an aggregate where it needs one."""
        return self.reads == "aggregates" and not self._aggregate and name.id in self.scope.columns

    def _needs_aggregate(self, name: ast.Name, edit: Edit | None) -> None:
        message = f"{self.place} looks at all rows, but `{name.id}` is a column of each one"
        type_ = self.scope.columns[name.id].type
        functions = ("all", "any") if type_ == "bool" else ("min", "max", "mean")
        help = f"say over which rows: {listed(f'{function}({name.id})' for function in functions)}"
        if type_ in ("text", "unknown"):
            help = "put `any(…)` or `all(…)` around the comparison"
        self.scope.error("QP212", message, name.span, "needs an aggregate", help=help, edit=edit)

    def _operand(self, expr: ast.Expr, wanted: frozenset[str] | str, rule: str) -> Type:
        actual = self.type(expr)
        if fits(actual, wanted):
            return actual
        self._wrong(expr, actual, wanted, rule)
        return "unknown"

    def _binary(self, expr: ast.Binary) -> Type:
        if expr.op in ("and", "or"):
            self._operand(expr.left, "bool", f"`{expr.op}` takes bools")
            self._operand(expr.right, "bool", f"`{expr.op}` takes bools")
            return "bool"
        if self._bare_word(expr.left, expr.right) or self._bare_word(expr.right, expr.left):
            return "bool"
        left, right = self.type(expr.left), self.type(expr.right)
        compares = expr.op in _COMPARISONS
        if "unknown" in (left, right):
            return "bool" if compares else "unknown"
        if expr.op in ("==", "!="):
            same = left == right or {left, right} <= NUMBERS or "none" in (left, right)
            return "bool" if same else self._mismatch(expr, left, right)
        if {left, right} <= NUMBERS:
            return "bool" if compares else "int" if left == right == "int" and expr.op != "/" else "float"
        if left == right == "text" and (compares or expr.op == "+"):
            return "bool" if compares else "text"
        return self._mismatch(expr, left, right)

    def _bare_word(self, column: ast.Expr, word: ast.Expr) -> bool:
        """Reports a value of `finish` that is compared with it without quotes, as if it were a name."""
        if not (isinstance(column, ast.Name) and column.id == "finish" and isinstance(word, ast.Name)):
            return False
        if word.id not in FINISHES or word.id in self.scope.columns or word.id in self.scope.params:
            return False
        edit = Edit(word.span, f'"{word.id}"')
        message = f"`{word.id}` is a name here, and no stage makes it"
        self.scope.error("QP203", message, word.span, "unknown column", help="a text stands in quotes", edit=edit)
        return True

    def _mismatch(self, expr: ast.Binary, left: Type, right: Type) -> Type:
        what = f"apply `{expr.op}` to {left} and {right}"
        if expr.op in _COMPARISONS:
            what = f"compare {left} with {right}"
        self.scope.error("QP209", f"cannot {what}", expr.span, f"{left} {expr.op} {right}")
        return "unknown"

    def _apply(self, call: ast.Apply) -> Type:
        name, count = call.function, len(call.args)
        if name not in FUNCTIONS:
            near = _FUNCTION_ALIASES.get(name.lower()) or closest(name, FUNCTIONS)
            fix = {"help": f"did you mean `{near}`?", "edit": Edit(call.name_span, near)} if near else {}
            if name in TYPES or is_alias(name):
                fix = {"help": "no function gives a value another type; `vote … equal=number` compares as numbers"}
            notes = (f"functions: {', '.join(FUNCTIONS)}",)
            self.scope.error("QP205", f"unknown function `{name}`", call.name_span, notes=notes, **fix)  # type: ignore[arg-type]
            return "unknown"
        if count == 0 or (count > 1 and name not in ("min", "max")):
            takes = "arguments" if name in ("min", "max") else "one argument"
            self.scope.error("QP219", f"`{name}` takes {takes}, found {count}", call.span)
            return "unknown"
        if name == "len":
            self._operand(call.args[0], "text", "`len` takes a text")
            return "int"
        if count == 1:
            return self._aggregate_type(call)
        types = [self._operand(arg, NUMBERS, f"`{name}` takes numbers") for arg in call.args]
        return "unknown" if "unknown" in types else "int" if set(types) == {"int"} else "float"

    def _aggregate_type(self, call: ast.Apply) -> Type:
        name, argument = call.function, call.args[0]
        if self._aggregate:
            self.scope.error("QP211", f"`{name}` stands inside another aggregate", call.name_span, "one is enough")
            return "unknown"
        if self.reads in ("parameters", "row"):
            message = f"{self.place} looks at one row, but `{name}` looks at all"
            if self.reads == "parameters":
                message = f"{self.place} reads no rows, but `{name}` looks at all"
            notes = ("aggregates stand in `until` and `return`",)
            self.scope.error("QP211", message, call.span, "an aggregate", notes=notes)
            return "unknown"
        self._aggregate = name
        if name in ("all", "any"):
            self._operand(argument, "bool", f"`{name}` takes a bool")
            result: Type = "bool"
        else:
            actual = self._operand(argument, NUMBERS, f"`{name}` takes a number")
            result = "float" if name == "mean" else actual
        self._aggregate = None
        return result


def _with_article(type_: Type) -> str:
    return "none" if type_ == "none" else f"{'an' if type_ == 'int' else 'a'} {type_}"


def _fix(expr: ast.Expr, actual: Type, wanted: frozenset[str], scope: Scope) -> dict[str, Any]:
    """`help` and `edit` of a diagnostic: a value without its quotes or with them, a whole number, a comparison."""
    match expr:
        case ast.Template(parts=(str(text),)):
            if (wanted & NUMBERS and _NUMBER.fullmatch(text)) or _type_of_name(text, scope) in wanted:
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


def _type_of_name(name: str, scope: Scope) -> Type | None:
    if name in scope.columns:
        return scope.columns[name].type
    return param_type(scope.params[name]) if name in scope.params else None


def _write(expr: ast.Expr, text: str) -> dict[str, Any]:
    return {"help": f"write `{text}`", "edit": Edit(expr.span, text)}
