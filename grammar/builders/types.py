"""Types of schema fields, and what the arguments of a type mean.

Clauses: what follows the options of a stage, or the parameters of a program, and begins with a word of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.expressions import at, constant, name_of, span_of
from qpdsl.grammar.builders.forms import Form, FormBuilder, Option, RangeArgument, key_of
from qpdsl.grammar.diagnostic import Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import CLAUSE_FORMS, SYSTEMS, TARGETS, TEXT_OPTIONS, TYPE_FORMS, TYPES


@dataclass(frozen=True, slots=True)
class RegexArgument:
    """`name=/regex/`."""

    name: Token
    regex: ast.Regex


TypeArgument = RangeArgument | RegexArgument | ast.Argument


class TypeBuilder(FormBuilder):
    """A faulty type with arguments is reported, and gives the plain type of its name, or `text`."""

    def record(self, meta: Any, children: list[ast.Field]) -> ast.RecordType:
        fields: dict[str, ast.Field] = {}
        for field in children:
            first = fields.setdefault(field.name, field)
            if first is not field:
                message, secondary = f"field `{field.name}` is declared twice", (Label(first.name_span, "the first"),)
                self.report("QP208", message, field.name_span, "again", secondary=secondary)
        return ast.RecordType(tuple(fields.values()), span=span_of(meta))

    def field(self, meta: Any, children: list[Any]) -> ast.Field:
        name, type_, optional = children
        return ast.Field(str(name), type_, optional is not None, span=span_of(meta), name_span=at(name))

    def result(self, meta: Any, children: list[Any]) -> tuple[ast.TypeExpr, bool]:
        """The type of a program's result, and whether it may be none."""
        return children[0], children[1] is not None

    def union(self, meta: Any, children: list[Token]) -> ast.UnionType:
        return ast.UnionType(tuple(ast.TypeRef(str(name), span=at(name)) for name in children), span=span_of(meta))

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
                options = None if plain is None else self.choices_of(Form(name, plain, span))
                type_ = None if options is None else ast.ChoiceType(options, span=span)
            case _:
                forms = ", ".join(TYPE_FORMS.values())
                if name in ("enum", "Enum", "Literal", "oneOf"):
                    message, edit = f"`{name}` is no type with arguments", Edit(at(name), "choice")
                    self.report("QP124", message, at(name), notes=(f"form: {forms}",), help="write `choice`", edit=edit)
                else:
                    self.report_unknown_form(name, "type with arguments", tuple(TYPE_FORMS), forms)
        plain_name = name.value if name.value in ("int", "float") else "text"
        return type_ or ast.TypeRef(plain_name, span=span)

    def target_form(self, meta: Any, children: list[Any]) -> ast.Target | None:
        """What `as` takes with arguments: `int(1..5)`, `choice("a", "b")`, `choice(options)`, `grammar("x.lark")`."""
        name, span = children[0], span_of(meta)
        arguments: tuple[TypeArgument, ...] = children[1] or ()
        if name.value in ("int", "float", "text"):
            return ast.TypeTarget(self.type_call(meta, children), span=span)
        if name.value not in TARGETS:
            self.report_unknown_form(name, "way to hold the output", TARGETS, CLAUSE_FORMS["as"])
            return None
        only = arguments[0] if len(arguments) == 1 else None
        if name.value == "choice" and isinstance(only, ast.Argument) and isinstance(only.value, ast.Name):
            return ast.OptionsTarget(only.value, span=span)
        plain = self._plain_arguments(name, arguments)
        return None if plain is None else self.target_of(Form(name, plain, span))

    def type_args(self, meta: Any, children: list[TypeArgument]) -> tuple[TypeArgument, ...]:
        return tuple(children)

    def regex_argument(self, meta: Any, children: list[Token]) -> RegexArgument:
        name, pattern = children
        return RegexArgument(name, self.pattern(pattern))

    def _counts(self, range_: RangeArgument) -> tuple[int | None, int | None]:
        """The bounds of a list's length."""
        what, notes = "the length of a list is a whole number", ("form: [TYPE](LOW..HIGH)",)
        ends = self._ends(range_, what, "list is this long", notes, whole=True) or (None, None)
        for bound, number in zip((range_.low, range_.high), ends, strict=True):
            if bound is not None and number is not None and number < 0:
                self.report("QP301", "the length of a list is at least 0", bound.span)
        low, high = (None if number is None or number < 0 else int(number) for number in ends)
        return low, high

    def _range_type(self, name: Token, arguments: tuple[TypeArgument, ...], span: Span) -> ast.RangeType | None:
        notes = (f"form: {name}(LOW..HIGH), where one bound may be left out",)
        range_ = arguments[0] if len(arguments) == 1 else None
        if not isinstance(range_, RangeArgument):
            self.report("QP125", f"`{name}` takes a range, as in `{name}(0..150)`", span, notes=notes)
            return None
        what = f"a bound is {'a whole number' if name == 'int' else 'a number'} that is written out"
        ends = self._ends(range_, what, "number is in this range", notes, whole=name == "int")
        return None if ends is None else ast.RangeType("int" if name == "int" else "float", *ends, span=span)

    def _ends(
        self, range_: RangeArgument, what: str, none: str, notes: tuple[str, ...], *, whole: bool
    ) -> tuple[int | float | None, int | float | None] | None:
        """The numbers at both ends of a range, one at least; `what` an end is, and that `none` is where they cross."""
        low, high = (None if bound is None else constant(bound) for bound in (range_.low, range_.high))
        if range_.low is None and range_.high is None:
            self.report("QP125", "a range has a bound at one end at least", range_.span, notes=notes)
            return None
        for bound, number in ((range_.low, low), (range_.high, high)):
            if bound is not None and (number is None or (whole and not isinstance(number, int))):
                self.report("QP125", what, bound.span, f"expected {'a whole number' if whole else 'a number'}")
                return None
        if low is not None and high is not None and low > high:
            self.report("QP301", f"no {none}: {low} is over {high}", range_.span)
            return None
        return low, high

    def _text_type(self, arguments: tuple[TypeArgument, ...], span: Span) -> ast.TextType | None:
        notes, fault_count = (f"form: {TYPE_FORMS['text']}",), len(self.diagnostics)
        keys: dict[str, Span] = {}
        values: dict[str, Any] = {}
        for argument in arguments:
            if isinstance(argument, RangeArgument) or argument.name is None:
                self.report("QP125", "`text` takes options by name", argument.span, notes=notes)
                continue
            key, value, key_span = _text_option(argument)
            if key in keys:
                self.report_repeated(f"option `{key}`", key_span, keys[key])
            elif key not in TEXT_OPTIONS:
                self.report_unknown_option("text", key_span, key, TEXT_OPTIONS, TYPE_FORMS["text"])
            else:
                values[key] = self._text_option_value(key, value)
            keys.setdefault(key, key_span)
        if not arguments:
            self.report("QP125", "`text(…)` takes an option; plain text is `text`", span, notes=notes)
        if len(self.diagnostics) > fault_count:
            return None
        shortest, longest = values.get("min_length"), values.get("max_length")
        if shortest is not None and longest is not None and shortest > longest:
            self.report("QP301", f"no text is this long: {shortest} is over {longest}", span)
            return None
        return ast.TextType(**values, span=span)

    def _text_option_value(self, key: str, value: ast.Expr | ast.Regex) -> object:
        if isinstance(value, ast.Regex) or key == "pattern":
            if isinstance(value, ast.Regex) and key == "pattern":
                return value
            expected = "a `/regex/`" if key == "pattern" else "a string" if key == "format" else "a number"
            self.report("QP125", f"`{key}` takes {expected}", value.span, f"expected {expected}")
            return None
        if key == "format":
            return self.text_of(value, "a format")
        number = constant(value)
        if type(number) is not int:
            self.report("QP125", f"`{key}` takes a whole number", value.span, "expected a whole number")
        elif number < 0:
            self.report("QP301", f"`{key}` is at least 0", value.span)
        return number

    def _plain_arguments(self, name: Token, arguments: tuple[TypeArgument, ...]) -> tuple[ast.Argument, ...] | None:
        """The arguments, where none is a range or a regex."""
        plain = tuple(argument for argument in arguments if isinstance(argument, ast.Argument))
        odd = next((argument for argument in arguments if not isinstance(argument, ast.Argument)), None)
        if odd is None:
            return plain
        span = odd.span if isinstance(odd, RangeArgument) else odd.regex.span
        notes = (f"form: {TYPE_FORMS.get(str(name), CLAUSE_FORMS['as'])}",)
        self.report("QP125", f"`{name}` takes strings", span, "expected a string", notes=notes)
        return None


def _text_option(argument: RegexArgument | ast.Argument) -> tuple[str, ast.Expr | ast.Regex, Span]:
    """An option of `text(…)`: its key, its value, and where the key stands."""
    if isinstance(argument, RegexArgument):
        return str(argument.name), argument.regex, at(argument.name)
    return str(argument.name), argument.value, key_of(argument)


# What clauses begin with, where that is not the field that takes their value.
_WORDS = {"otherwise": "else", "target": "as", "scale": "as", "budget": "within budget", "deadline": "within deadline"}


@dataclass(slots=True)
class Clause:
    """A clause of `generate`, `score`, `call` or `program`; `value` is None where it was faulty.

    `word` is the field of the stage or program that takes the value.
    """

    word: str
    value: Any
    span: Span


class ClauseBuilder(FormBuilder):
    # Of stages

    def target(self, meta: Any, children: list[Any]) -> Clause:
        target = children[0]
        value: ast.Target | None
        if isinstance(target, ast.ListType | ast.RecordType | ast.UnionType):
            value = ast.TypeTarget(target, span=target.span)
        elif not isinstance(target, Token):
            value = target
        elif target.type == "REGEX":
            value = self.pattern(target)
        elif target.value in TYPES:
            value = ast.TypeTarget(ast.TypeRef(target.value, span=at(target)), span=at(target))
        else:
            value = ast.SchemaTarget(str(target), span=at(target))
        if isinstance(value, ast.TypeTarget) and self._is_text(value.type):
            message = "every output is a text, which `as text` would write as JSON"
            help = "leave `as` out; what the text may be is a regex: `as /.{1,40}/`"
            self.report("QP360", message, value.span, help=help)
            value = None
        return Clause("target", value, span_of(meta))

    @staticmethod
    def _is_text(type_: ast.TypeExpr) -> bool:
        return isinstance(type_, ast.TextType) or (isinstance(type_, ast.TypeRef) and type_.name == "text")

    def via(self, meta: Any, children: list[Form]) -> Clause:
        return Clause("via", self.via_of(children[0]), span_of(meta))

    def draft(self, meta: Any, children: list[ast.ModelRef | Form | Token]) -> Clause:
        return Clause("draft", self.draft_of(children[0]), span_of(meta))

    def scale(self, meta: Any, children: list[Form]) -> Clause:
        return Clause("scale", children[0], span_of(meta))

    def of(self, meta: Any, children: list[ast.Expr]) -> Clause:
        return Clause("of", children[0], span_of(meta))

    def given(self, meta: Any, children: list[ast.Expr]) -> Clause:
        return Clause("given", children[0], span_of(meta))

    def into(self, meta: Any, children: list[Token]) -> Clause:
        return Clause("into", name_of(children[0]), span_of(meta))

    def per(self, meta: Any, children: list[Token]) -> Clause:
        return Clause("per", name_of(children[0]), span_of(meta))

    def otherwise(self, meta: Any, children: list[ast.Expr]) -> Clause:
        return Clause("otherwise", children[0], span_of(meta))

    # Of programs

    def within(self, meta: Any, children: list[Any]) -> Clause:
        form = children[0]
        instead = next((child for child in children[1:] if isinstance(child, Form)), None)
        name = form.name if isinstance(form, Form) else form.partition("(")[0].rstrip()
        if name == "accuracy":
            return Clause("budget", self.target_budget_of(form, instead), span_of(meta))
        if instead is not None:
            self.report("QP142", f"`or` follows `accuracy(…)`, not `{name}`", instead.span, "another budget")
        if name == "budget":
            return Clause("budget", self.budget_of(form), span_of(meta))
        if name == "deadline":
            return Clause("deadline", self.deadline_of(form), span_of(meta))
        return Clause("within", self.within_of(form), span_of(meta))

    def like(self, meta: Any, children: list[Token]) -> Clause:
        name, span = children[0], span_of(meta)
        if name in SYSTEMS:
            return Clause("like", ast.Like("search_and_learn", span=span), span)
        self.report_unknown_form(name, "system", SYSTEMS, CLAUSE_FORMS["like"])
        return Clause("like", None, span)

    def prefer(self, meta: Any, children: list[Option]) -> Clause:
        (key, value), span = children[0], span_of(meta)
        if key != "latency":
            message, notes = f"`prefer` has no option `{key}`", (f"form: {CLAUSE_FORMS['prefer']}",)
            edit = Edit(at(key), "latency")
            self.report("QP116", message, at(key), "unknown option", notes=notes, help="write `latency`", edit=edit)
            return Clause("prefer", None, span)
        number = self.number_between(value, "`latency`", 0, 1)
        return Clause("prefer", None if number is None else ast.Prefer(float(number), span=span), span)

    def clause_values(self, clauses: list[Any]) -> dict[str, Any]:
        """The values of the clauses in a list, by word, each once; a repeated clause is reported and left out."""
        firsts: dict[str, Clause] = {}
        for clause in clauses:
            if not isinstance(clause, Clause):
                continue
            first = firsts.setdefault(clause.word, clause)
            if first is not clause:
                word = _WORDS.get(clause.word, clause.word)
                self.report_repeated(f"`{word}`", clause.span, first.span)
        return {word: clause.value for word, clause in firsts.items()}
