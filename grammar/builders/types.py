"""Types of schema fields, and what the arguments of a type mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.forms import Form, FormBuilder, RangeArgument
from qpdsl.grammar.builders.leaves import LeafBuilder, at, constant, span_of
from qpdsl.grammar.diagnostic import Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import CLAUSE_FORMS, TARGETS, TEXT_OPTIONS, TYPE_FORMS


@dataclass(frozen=True, slots=True)
class RegexArgument:
    """`name=/regex/`."""

    name: Token
    regex: ast.Regex


TypeArgument = RangeArgument | RegexArgument | ast.Argument


class TypeBuilder:
    """A faulty type with arguments is reported, and gives the plain type of its name, or `text`."""

    def __init__(self, faults: Faults, leaves: LeafBuilder, forms: FormBuilder) -> None:
        self.faults = faults
        self.leaves = leaves
        self.forms = forms

    def record(self, meta: Any, children: list[ast.Field]) -> ast.RecordType:
        fields: dict[str, ast.Field] = {}
        for field in children:
            first = fields.setdefault(field.name, field)
            if first is not field:
                message, secondary = f"field `{field.name}` is declared twice", (Label(first.name_span, "the first"),)
                self.faults.report("QP208", message, field.name_span, "again", secondary=secondary)
        return ast.RecordType(tuple(fields.values()), span=span_of(meta))

    def field(self, meta: Any, children: list[Any]) -> ast.Field:
        name, type_, optional = children
        return ast.Field(str(name), type_, optional is not None, span=span_of(meta), name_span=at(name))

    def result(self, meta: Any, children: list[ast.TypeExpr]) -> ast.TypeExpr:
        return children[0]

    def type_name(self, meta: Any, children: list[Any]) -> ast.TypeRef:
        return ast.TypeRef(str(children[0]), span=span_of(meta))

    def type_list(self, meta: Any, children: list[Any]) -> ast.ListType:
        item, range_ = children
        low, high = (None, None) if range_ is None else self._counts(range_)
        return ast.ListType(item, low, high, span=span_of(meta))

    def type_call(self, meta: Any, children: list[Any]) -> ast.TypeExpr:
        name, span = children[0], span_of(meta)
        arguments: tuple[TypeArgument, ...] = children[1] or ()
        type_: ast.TypeExpr | None = None
        match name.value:
            case "int" | "float":
                type_ = self._range_type(name, arguments, span)
            case "text":
                type_ = self._text_type(arguments, span)
            case "choice":
                plain = self._plain_arguments(name, arguments)
                options = None if plain is None else self.forms.choices_of(Form(name, plain, span))
                type_ = None if options is None else ast.ChoiceType(options, span=span)
            case _:
                forms = ", ".join(TYPE_FORMS.values())
                self.forms.report_unknown(name, "type with arguments", tuple(TYPE_FORMS), forms)
        plain_name = name.value if name.value in ("int", "float") else "text"
        return type_ or ast.TypeRef(plain_name, span=span)

    def target_form(self, meta: Any, children: list[Any]) -> ast.Target | None:
        """What `as` takes with arguments: `int(1..5)`, `choice("a", "b")`, `choice(options)`, `grammar("x.lark")`."""
        name, span = children[0], span_of(meta)
        arguments: tuple[TypeArgument, ...] = children[1] or ()
        if name.value in ("int", "float", "text"):
            return ast.TypeTarget(self.type_call(meta, children), span=span)
        if name.value not in TARGETS:
            self.forms.report_unknown(name, "way to hold the output", TARGETS, CLAUSE_FORMS["as"])
            return None
        only = arguments[0] if len(arguments) == 1 else None
        if name.value == "choice" and isinstance(only, ast.Argument) and isinstance(only.value, ast.Name):
            return ast.OptionsTarget(only.value, span=span)
        plain = self._plain_arguments(name, arguments)
        return None if plain is None else self.forms.target_of(Form(name, plain, span))

    def type_args(self, meta: Any, children: list[TypeArgument]) -> tuple[TypeArgument, ...]:
        return tuple(children)

    def regex_argument(self, meta: Any, children: list[Token]) -> RegexArgument:
        name, pattern = children
        return RegexArgument(name, self.leaves.pattern(pattern))

    def _counts(self, range_: RangeArgument) -> tuple[int | None, int | None]:
        """The bounds of a list's length."""
        if range_.low is None and range_.high is None:
            message, notes = "a range has a bound at one end at least", ("form: [TYPE](LOW..HIGH)",)
            self.faults.report("QP125", message, range_.span, notes=notes)
        counts: list[int | None] = []
        for bound in (range_.low, range_.high):
            number = None if bound is None else constant(bound)
            if bound is not None and type(number) is not int:
                self.faults.report("QP125", "the length of a list is a whole number", bound.span, "expected a number")
                number = None
            elif number is not None and number < 0:
                self.faults.report("QP301", "the length of a list is at least 0", bound.span)  # type: ignore[union-attr]
                number = None
            counts.append(None if number is None else int(number))
        low, high = counts
        if low is not None and high is not None and low > high:
            self.faults.report("QP301", f"no list is this long: {low} is over {high}", range_.span)
            return None, None
        return low, high

    def _range_type(self, name: Token, arguments: tuple[TypeArgument, ...], span: Span) -> ast.RangeType | None:
        notes = (f"form: {name}(LOW..HIGH), where one bound may be left out",)
        range_ = arguments[0] if len(arguments) == 1 else None
        if not isinstance(range_, RangeArgument):
            self.faults.report("QP125", f"`{name}` takes a range, as in `{name}(0..150)`", span, notes=notes)
            return None
        if range_.low is None and range_.high is None:
            self.faults.report("QP125", "a range has a bound at one end at least", range_.span, notes=notes)
            return None
        bounds: list[int | float | None] = []
        for bound in (range_.low, range_.high):
            number = None if bound is None else constant(bound)
            if bound is not None and (number is None or (name == "int" and not isinstance(number, int))):
                expected = "a whole number" if name == "int" else "a number"
                message = f"a bound is {expected} that is written out"
                self.faults.report("QP125", message, bound.span, f"expected {expected}")
                return None
            bounds.append(number)
        low, high = bounds
        if low is not None and high is not None and low > high:
            self.faults.report("QP301", f"no number is in this range: {low} is over {high}", range_.span)
            return None
        return ast.RangeType("int" if name == "int" else "float", low, high, span=span)

    def _text_type(self, arguments: tuple[TypeArgument, ...], span: Span) -> ast.TextType | None:
        notes, fault_count = (f"form: {TYPE_FORMS['text']}",), len(self.faults.diagnostics)
        keys: dict[str, Span] = {}
        values: dict[str, Any] = {}
        for argument in arguments:
            if isinstance(argument, RangeArgument) or argument.name is None:
                self.faults.report("QP125", "`text` takes options by name", argument.span, notes=notes)
                continue
            key, value, key_span = _text_option(argument)
            if key in keys:
                self.faults.report_repeated(f"option `{key}`", key_span, keys[key])
            elif key not in TEXT_OPTIONS:
                message = f"`text` has no option `{key}`"
                self.faults.report_unknown("QP116", message, key_span, key, TEXT_OPTIONS, "unknown option", notes=notes)
            else:
                values[key] = self._text_option_value(key, value)
            keys.setdefault(key, key_span)
        if not arguments:
            self.faults.report("QP125", "`text(…)` takes an option; plain text is `text`", span, notes=notes)
        if len(self.faults.diagnostics) > fault_count:
            return None
        shortest, longest = values.get("min_length"), values.get("max_length")
        if shortest is not None and longest is not None and shortest > longest:
            self.faults.report("QP301", f"no text is this long: {shortest} is over {longest}", span)
            return None
        return ast.TextType(**values, span=span)

    def _text_option_value(self, key: str, value: ast.Expr | ast.Regex) -> object:
        if isinstance(value, ast.Regex) or key == "pattern":
            if isinstance(value, ast.Regex) and key == "pattern":
                return value
            expected = "a `/regex/`" if key == "pattern" else "a string" if key == "format" else "a number"
            self.faults.report("QP125", f"`{key}` takes {expected}", value.span, f"expected {expected}")
            return None
        if key == "format":
            return self.leaves.text_of(value, "a format")
        number = constant(value)
        if type(number) is not int:
            self.faults.report("QP125", f"`{key}` takes a whole number", value.span, "expected a whole number")
        elif number < 0:
            self.faults.report("QP301", f"`{key}` is at least 0", value.span)
        return number

    def _plain_arguments(self, name: Token, arguments: tuple[TypeArgument, ...]) -> tuple[ast.Argument, ...] | None:
        """The arguments, where none is a range or a regex."""
        plain = tuple(argument for argument in arguments if isinstance(argument, ast.Argument))
        odd = next((argument for argument in arguments if not isinstance(argument, ast.Argument)), None)
        if odd is None:
            return plain
        span = odd.span if isinstance(odd, RangeArgument) else odd.regex.span
        notes = (f"form: {TYPE_FORMS.get(str(name), CLAUSE_FORMS['as'])}",)
        self.faults.report("QP125", f"`{name}` takes strings", span, "expected a string", notes=notes)
        return None


def _text_option(argument: RegexArgument | ast.Argument) -> tuple[str, ast.Expr | ast.Regex, Span]:
    """An option of `text(…)`: its key, its value, and where the key stands."""
    if isinstance(argument, RegexArgument):
        return str(argument.name), argument.regex, at(argument.name)
    key, start = str(argument.name), argument.span.start
    return key, argument.value, Span(start, start + len(key))
