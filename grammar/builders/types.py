"""Types of schema fields: what their arguments mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.forms import Form, Forms
from qpdsl.grammar.builders.leaves import at
from qpdsl.grammar.diagnostic import Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import TEXT_OPTIONS, TYPE_FORMS


@dataclass(frozen=True, slots=True)
class Range:
    """`LOW..HIGH`, either of which may be left out."""

    low: ast.Expr | None
    high: ast.Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class RegexArgument:
    """`name=/regex/`."""

    name: Token
    regex: ast.Regex


TypeArgument = Range | RegexArgument | ast.Argument


class Types(Forms):
    """Types with arguments. A faulty one is reported, and gives the plain type of its name, or `text`."""

    def type_with(self, name: Token, arguments: tuple[TypeArgument, ...], span: Span) -> ast.TypeExpr:
        found: ast.TypeExpr | None = None
        match name.value:
            case "int" | "float":
                found = self._range(name, arguments, span)
            case "text":
                found = self._text_type(name, arguments, span)
            case "choice":
                plain = self._plain_arguments(name, arguments)
                options = None if plain is None else self.choices(Form(name, plain, span))
                found = None if options is None else ast.ChoiceType(options, span=span)
            case _:
                self.unknown_form(name, "type with arguments", tuple(TYPE_FORMS), ", ".join(TYPE_FORMS.values()))
        plain_name = name.value if name.value in ("int", "float") else "text"
        return found or ast.TypeRef(plain_name, span=span)

    def _range(self, name: Token, arguments: tuple[TypeArgument, ...], span: Span) -> ast.RangeType | None:
        form = (f"form: {name}(LOW..HIGH), where one bound may be left out",)
        given = arguments[0] if len(arguments) == 1 else None
        if not isinstance(given, Range):
            self.fault("QP125", f"`{name}` takes a range, as in `{name}(0..150)`", span, notes=form)
            return None
        if given.low is None and given.high is None:
            self.fault("QP125", "a range has a bound at one end at least", given.span, notes=form)
            return None
        bounds: list[int | float | None] = []
        for bound in (given.low, given.high):
            value = None if bound is None else self.constant(bound)
            if bound is not None and (value is None or (name == "int" and not isinstance(value, int))):
                wanted = "a whole number" if name == "int" else "a number"
                self.fault("QP125", f"a bound is {wanted} that is written out", bound.span, f"expected {wanted}")
                return None
            bounds.append(value)
        low, high = bounds
        if low is not None and high is not None and low > high:
            self.fault("QP301", f"no number is in this range: {low} is over {high}", given.span)
            return None
        return ast.RangeType("int" if name == "int" else "float", low, high, span=span)

    def _text_type(self, name: Token, arguments: tuple[TypeArgument, ...], span: Span) -> ast.TextType | None:
        notes, count = (f"form: {TYPE_FORMS['text']}",), len(self.faults)
        seen: dict[str, Span] = {}
        values: dict[str, Any] = {}
        for argument in arguments:
            if isinstance(argument, Range) or argument.name is None:
                self.fault("QP125", "`text` takes options by name", argument.span, notes=notes)
                continue
            key, value = str(argument.name), argument.regex if isinstance(argument, RegexArgument) else argument.value
            start = value.span.start if isinstance(argument, RegexArgument) else argument.span.start
            place = at(argument.name) if isinstance(argument, RegexArgument) else Span(start, start + len(key))
            if key in seen:
                self.fault(
                    "QP117",
                    f"option `{key}` is given twice",
                    place,
                    "again here",
                    secondary=(Label(seen[key], "the first"),),
                )
            elif key not in TEXT_OPTIONS:
                near = closest(key, TEXT_OPTIONS)
                fix = {"help": f"did you mean `{near}`?", "edit": Edit(place, near)} if near else {}
                self.fault("QP116", f"`text` has no option `{key}`", place, "unknown option", notes=notes, **fix)
            else:
                values[key] = self._text_option(key, value)
            seen.setdefault(key, place)
        if not arguments:
            self.fault("QP125", "`text(…)` takes an option; plain text is `text`", span, notes=notes)
        if len(self.faults) > count:
            return None
        shortest, longest = values.get("min_length"), values.get("max_length")
        if shortest is not None and longest is not None and shortest > longest:
            self.fault("QP301", f"no text is this long: {shortest} is over {longest}", span)
            return None
        return ast.TextType(**values, span=span)

    def _text_option(self, key: str, value: ast.Expr | ast.Regex) -> object:
        if isinstance(value, ast.Regex) or key == "pattern":
            if isinstance(value, ast.Regex) and key == "pattern":
                return value
            wanted = "a `/regex/`" if key == "pattern" else "a string" if key == "format" else "a number"
            self.fault("QP125", f"`{key}` takes {wanted}", value.span, f"expected {wanted}")
            return None
        if key == "format":
            return self._text(value, "a format")
        number = self.constant(value)
        if type(number) is not int:
            self.fault("QP125", f"`{key}` takes a whole number", value.span, "expected a whole number")
        elif number < 0:
            self.fault("QP301", f"`{key}` is at least 0", value.span)
        return number

    def _plain_arguments(self, name: Token, arguments: tuple[TypeArgument, ...]) -> tuple[ast.Argument, ...] | None:
        plain = tuple(argument for argument in arguments if isinstance(argument, ast.Argument))
        odd = next((argument for argument in arguments if not isinstance(argument, ast.Argument)), None)
        if odd is None:
            return plain
        span = odd.span if isinstance(odd, Range) else odd.regex.span
        self.fault(
            "QP125", f"`{name}` takes strings", span, "expected a string", notes=(f"form: {TYPE_FORMS['choice']}",)
        )
        return None
