"""Forms: the targets, ways to decode and levels that are a name with arguments, as `filter(slm, 0.9)`.

Options, `key=value`: which ones a stage or model takes, each at most once, and the words that some of them take.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass, replace
from decimal import Decimal
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES, options
from qpdsl.grammar.builders.expressions import LeafBuilder, at, constant, span_of
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import (
    ACCURACY_FORM,
    BOUNDED_LEVELS,
    BUDGET_FORM,
    BUDGET_UNITS,
    CLAUSE_FORMS,
    DECLARATIONS,
    DEFAULT_UNIT,
    DRAFT_OPTIONS,
    DRAFTS,
    LEVELS,
    MAX_CALLS_AT_ONCE,
    MAX_DRAFTED,
    MODEL_OPTIONS,
    TARGETS,
    VIAS,
    BudgetUnit,
    DraftMethod,
)

Option = tuple[Token, ast.Expr]


class OptionBuilder(LeafBuilder):
    """Reports unknown and repeated options, and leaves them out."""

    def option(self, meta: Any, children: list[Any]) -> Option:
        key, value = children
        return key, value

    def stop(self, meta: Any, children: list[Any]) -> Option:
        """The one option whose value may be a regex."""
        key, value = children
        return key, self.pattern(value) if isinstance(value, Token) else value

    def option_values(self, owner: str, given: list[Option]) -> dict[str, ast.Expr]:
        """The values of the options of a stage, by its word, or of a `model`, by name."""
        keys: dict[str, Token] = {}
        values: dict[str, ast.Expr] = {}
        for key, value in given:
            if key.value in keys:
                self.report_repeated(f"option `{key}`", at(key), at(keys[key.value]))
            elif self.is_known(owner, key):
                keys[key.value] = key
                values[key.value] = value
        return values

    def is_known(self, owner: str, key: Token) -> bool:
        """Whether a stage or a `model` has an option; one that it does not have is reported."""
        stage = STAGES.get(owner)
        known, usage = (options(stage), stage.usage) if stage else (MODEL_OPTIONS, DECLARATIONS[owner])
        if key.value not in known:
            self.report_unknown_option(owner, at(key), key.value, known, usage, "role" if owner == "chat" else "option")
        return key.value in known

    def word(self, option: str, value: ast.Expr, known: tuple[str, ...], code: str, label: str) -> Any:
        """One of the words that an option takes; the first of them where it is faulty, which is reported."""
        word = value.id if isinstance(value, ast.Name) else ""
        if word in known:
            return word
        if isinstance(value, ast.Template) and len(value.parts) == 1 and isinstance(value.parts[0], str):
            word = value.parts[0]
        self.report_unknown(code, f"`{option}` is one of {listed(known)}", value.span, word, known, label)
        return known[0]


@dataclass(frozen=True, slots=True)
class RangeArgument:
    """`LOW..HIGH`, either of which may be left out."""

    low: ast.Expr | None
    high: ast.Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Form:
    """A name with arguments in brackets, not yet known to mean anything."""

    name: Token
    arguments: tuple[ast.Argument | RangeArgument, ...]
    span: Span


def key_of(argument: ast.Argument) -> Span:
    """Where the name of an argument that has one stands."""
    return Span(argument.span.start, argument.span.start + len(argument.name or ""))


# As decimals, so that a time is written as it was.
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "min": Decimal(60)}


class FormBuilder(OptionBuilder):
    """What forms mean. A faulty one is reported and gives None."""

    def form(self, meta: Any, children: list[Any]) -> Form:
        name, arguments = children
        return Form(name, arguments or (), span_of(meta))

    def model_form(self, meta: Any, children: list[Any]) -> Form:
        return self.form(meta, children)

    def form_arguments(
        self, meta: Any, children: list[ast.Argument | RangeArgument]
    ) -> tuple[ast.Argument | RangeArgument, ...]:
        return tuple(children)

    def range(self, meta: Any, children: list[ast.Expr | None]) -> RangeArgument:
        return RangeArgument(children[0], children[1], span_of(meta))

    def by_argument(self, meta: Any, children: list[ast.Expr]) -> ast.Argument:
        return ast.Argument("by", children[0], span=span_of(meta))

    def arguments(self, meta: Any, children: list[ast.Argument]) -> tuple[ast.Argument, ...]:
        return tuple(children)

    def argument(self, meta: Any, children: list[Any]) -> ast.Argument:
        name, value = children
        return ast.Argument(None if name is None else str(name), value, span=span_of(meta))

    # What a form means

    def target_of(self, form: Form) -> ast.Target | None:
        """`choice("a", "b")`, `grammar("file.lark")` or `call(TOOL, …)`."""
        if form.name == "choice":
            options = self.choices_of(form)
            return None if options is None else ast.ChoiceTarget(options, span=form.span)
        if form.name == "grammar":
            values = self.form_values(form, 'grammar("file.lark")', 1)
            path = self.text_of(values[0], "a path") if values else None
            return None if path is None else ast.GrammarTarget(path, span=form.span)
        if form.name == "call":
            return self._call_target(form)
        self.report_unknown_form(form.name, "way to hold the output", TARGETS, CLAUSE_FORMS["as"])
        return None

    def _call_target(self, form: Form) -> ast.CallTarget | None:
        plain = [one for one in form.arguments if isinstance(one, ast.Argument)]
        given = [one.value for one in plain if one.name is None]
        counts = [one.value for one in plain if one.name == "calls"]
        tools = tuple(ast.ToolRef(value.id, span=value.span) for value in given if isinstance(value, ast.Name))
        named = tuple(tool for tool in tools if tool.name != "text")
        if not named or len(counts) > 1 or len(tools) + len(counts) < len(form.arguments):
            message = "`call` takes the names of tools"
            notes = ("form: as call(TOOL, …), as call(TOOL, …, text) or as call(TOOL, …, calls=3)",)
            self.report("QP125", message, form.span, notes=notes)
            return None
        most = self.number_between(counts[0], "`calls`", 1, MAX_CALLS_AT_ONCE) if counts else None
        if most is not None and not isinstance(most, int):
            self.report("QP301", "`calls` is a whole number", counts[0].span)
            return None
        return ast.CallTarget(named, len(named) < len(tools), most, span=form.span)

    def via_of(self, form: Form) -> ast.Via | None:
        """`filter(MODEL, THRESHOLD, …)`, `contrast(MODEL, ALPHA, …)`, or an early exit."""
        if form.name == ast.Filter.word:
            return self._filter(form)
        if form.name == ast.Contrast.word:
            found = self.form_fields(form, ast.Contrast, VIAS[form.name].usage)
            return None if found is None else ast.Contrast(**found, span=form.span)
        if form.name == ast.Amortized.word:
            return self._early_exit(form)
        self.report_unknown_form(form.name, "way to decode", tuple(VIAS), CLAUSE_FORMS["via"])
        return None

    def _filter(self, form: Form) -> ast.Filter | None:
        usage = VIAS[ast.Filter.word].usage
        found = self.form_fields(form, ast.Filter, usage)
        if found is not None and ("threshold" in found) == ("share" in found):
            message = "`filter` takes a threshold or a `share`" + (", not both" if "share" in found else "")
            self.report("QP125", message, form.span, notes=(f"form: {usage}",))
            return None
        return None if found is None else ast.Filter(**found, span=form.span)

    def _early_exit(self, form: Form) -> ast.Amortized | None:
        usage = VIAS[ast.Amortized.word].usage
        found = self.form_fields(form, ast.Amortized, usage)
        if found is not None and not {"margin", "certify"} & found.keys():
            message = f"`{form.name}` takes a margin, or `certify` in its place"
            self.report("QP125", message, form.span, notes=(f"form: {usage}",))
            return None
        return None if found is None else ast.Amortized(**found, span=form.span)

    def draft_of(self, value: ast.ModelRef | Form | Token) -> ast.DraftClause | None:
        """A model, one of `DRAFTS` or `none`, with options in brackets."""
        if isinstance(value, Token):
            return ast.DraftClause("none", span=at(value))
        span = value.span
        arguments: tuple[ast.Argument | RangeArgument, ...] = ()
        if isinstance(value, ast.ModelRef):
            name, model = "" if value.quoted else value.name, value
        else:
            name, arguments = value.name.value if value.name.type == "NAME" else "", value.arguments
            model = self.model_ref_at(value.name)
        method = next((method for method in DRAFTS if method == name), None)
        place, options = self._draft_arguments(method, arguments)
        if method is None:
            return ast.DraftClause("model", model, None, **options, span=span)
        if DRAFTS[method].named and place is None:
            self._misfit(f"`{method}` needs {DRAFTS[method].place}", span)
            return None
        return ast.DraftClause(method, None, place, **options, span=span)

    def _draft_arguments(
        self, method: DraftMethod | None, arguments: tuple[ast.Argument | RangeArgument, ...]
    ) -> tuple[str | None, dict[str, int]]:
        """The file or folder, and the options; faulty ones are reported and left out."""
        place: str | None = None
        options: dict[str, int] = {}
        for argument in arguments:
            if isinstance(argument, RangeArgument):
                self._misfit("`draft` takes no range", argument.span)
            elif argument.name is None:
                if method is None or place is not None:
                    self._misfit("`draft` takes no such argument here", argument.span)
                else:
                    place = self.text_of(argument.value, DRAFTS[method].place)
            elif argument.name not in DRAFT_OPTIONS:
                key, form = key_of(argument), CLAUSE_FORMS["draft"]
                self.report_unknown_option("draft", key, argument.name, DRAFT_OPTIONS, form)
            elif argument.name in options:
                self._misfit(f"`{argument.name}` is given twice", argument.span)
            else:
                number = self.number_between(argument.value, f"`{argument.name}` of `draft`", 1, MAX_DRAFTED)
                if isinstance(number, float):
                    self._misfit(f"`{argument.name}` of `draft` is a whole number", argument.value.span)
                elif number is not None:
                    options[argument.name] = number
        return place, options

    def _misfit(self, message: str, span: Span) -> None:
        self.report("QP125", message, span, notes=(f"form: {CLAUSE_FORMS['draft']}",))

    def budget_of(self, form: Form | Token) -> ast.Budget | None:
        """`budget(tokens=2000)`: one amount, of a unit that is named, over 0."""
        span, notes = form.span if isinstance(form, Form) else at(form), (f"form: within {BUDGET_FORM}",)
        arguments = form.arguments if isinstance(form, Form) else ()
        if len(arguments) != 1 or not isinstance(arguments[0], ast.Argument) or arguments[0].name is None:
            message = "a budget is one amount, with the name of what it counts"
            self.report("QP142", message, span, "expected one amount", notes=notes)
            return None
        unit = next((unit for unit in BUDGET_UNITS if unit == arguments[0].name), None)
        if unit is None:
            key = key_of(arguments[0])
            message = f"a budget counts no `{arguments[0].name}`"
            self.report_unknown("QP142", message, key, arguments[0].name, BUDGET_UNITS, notes=notes)
            return None
        amount = self._amount(arguments[0].value, unit)
        return None if amount is None else ast.Budget(unit, amount, span=span)

    def deadline_of(self, form: Form | Token) -> ast.Deadline | None:
        """`deadline(2s)`: more than no time, with its unit."""
        if isinstance(form, Form) or form.type != "DEADLINE":
            self._no_deadline(form)
            return None
        written = re.search(r"([\d.]+)(\w+)", form)
        assert written is not None
        seconds = float(Decimal(written[1]) * _SECONDS[written[2]])
        if not 0 < seconds < math.inf:
            what = "over 0 seconds" if not seconds else "finite"
            self.report("QP301", f"a deadline is {what}", at(form))
            return None
        return ast.Deadline(seconds, span=at(form))

    def _no_deadline(self, form: Form | Token) -> None:
        """Reports what stands in the place of a time."""
        notes = ("form: within deadline(2s); the units are ms, s and min",)
        if not isinstance(form, Form):
            self.report("QP125", "`deadline` needs a time", at(form), "without a time", notes=notes)
            return
        values = self.form_values(form, "deadline(2s)", 1)
        if values is None:
            return
        span, number = values[0].span, constant(values[0])
        message = "a deadline is a time that is written out, with its unit"
        if number is None:
            self.report("QP125", message, span, "expected a time", notes=notes)
        else:
            help, edit = f"write `{number}s`", Edit(span, f"{number}s")
            self.report("QP125", message, span, "without a unit", notes=notes, help=help, edit=edit)

    def target_budget_of(self, form: Form | Token, instead: Form | None) -> ast.Budget | None:
        """`accuracy(0.9, delta=0.05)`, with `tokens(2000)` behind its `or` or nothing."""
        span, notes = form.span if isinstance(form, Form) else at(form), (f"form: within {ACCURACY_FORM}",)
        arguments = form.arguments if isinstance(form, Form) else ()
        if [getattr(argument, "name", "range") for argument in arguments] not in ([None], [None, "delta"]):
            message = "a target is one share of right answers, and `delta` where another than 0.1 is wanted"
            self.report("QP142", message, span, "expected one share", notes=notes)
            return None
        shares = [self._open_share(argument) for argument in arguments if isinstance(argument, ast.Argument)]
        limit = None if instead is None else self._limit_of(instead, notes)
        if None in shares or (instead is not None and limit is None):
            return None
        unit, amount = limit or (DEFAULT_UNIT, None)
        return ast.Budget(unit, amount, *(share for share in shares if share is not None), span=span)

    def _open_share(self, argument: ast.Argument) -> float | None:
        """A number that is over 0 and below 1."""
        what = "`delta`" if argument.name else "the share of right answers"
        number = self.number_between(argument.value, what, 0, 1)
        if number in (0, 1):
            self.report("QP301", f"{what} lies between 0 and 1", argument.value.span, "no run can tell")
            return None
        return None if number is None else float(number)

    def _limit_of(self, form: Form, notes: tuple[str, ...]) -> tuple[BudgetUnit, float] | None:
        """What follows the `or` of a target: `cost(0.02)`."""
        unit = next((unit for unit in BUDGET_UNITS if unit == form.name), None)
        if unit is None:
            message = f"a budget counts no `{form.name}`"
            self.report_unknown("QP142", message, at(form.name), form.name, BUDGET_UNITS, notes=notes)
            return None
        arguments = form.arguments
        if len(arguments) != 1 or not isinstance(arguments[0], ast.Argument) or arguments[0].name is not None:
            self.report("QP142", f"`{unit}` takes one amount", form.span, "expected one amount", notes=notes)
            return None
        amount = self._amount(arguments[0].value, unit)
        return None if amount is None else (unit, amount)

    def _amount(self, value: ast.Expr, unit: BudgetUnit) -> float | None:
        amount = self.number_between(value, f"the budget in {unit}", 0, None)
        if amount == 0:
            self.report("QP301", "a budget is over 0", value.span, "nothing can be run with this")
        return float(amount) if amount else None

    def within_of(self, form: Form | Token) -> ast.Within | None:
        """`exact`, `replayable`, `recorded`, `epsilon(1e-3)` or `loss(0.02)`."""
        name, span = (form.name, form.span) if isinstance(form, Form) else (form, at(form))
        if name not in LEVELS:
            self.report_unknown_form(name, "level", LEVELS, CLAUSE_FORMS["within"])
            return None
        level = next(level for level in LEVELS if level == name)
        if level not in BOUNDED_LEVELS:
            if isinstance(form, Form):
                notes = (f"form: {CLAUSE_FORMS['within']}",)
                self.report("QP125", f"`{name}` takes no arguments", span, notes=notes)
            return ast.Within(level, span=span)
        usage = "epsilon(1e-3)" if name == "epsilon" else "loss(0.02)"
        if not isinstance(form, Form):
            notes = (f"form: within {usage}",)
            self.report("QP125", f"`{name}` needs a bound", span, "without a bound", notes=notes)
            return None
        values = self.form_values(form, usage, 1)
        if values is None:
            return None
        greatest = 1 if name == "loss" else None
        bound = self.number_between(values[0], f"the bound of `{name}`", 0, greatest)
        return None if bound is None else ast.Within(level, float(bound), span=span)

    def choices_of(self, form: Form) -> tuple[str, ...] | None:
        """The texts of `choice("a", "b")`: one at least, each once."""
        values = self.form_values(form, 'choice("a", "b")', None)
        if values is None:
            return None
        texts = [self.text_of(value, "a choice", empty=True) for value in values]
        for index, text in enumerate(texts):
            if text is not None and text in texts[:index]:
                self.report("QP125", f'"{text}" is given twice', values[index].span, "again here")
                return None
        return None if None in texts else tuple(text for text in texts if text is not None)

    def report_unknown_form(self, name: Token, kind: str, known: tuple[str, ...], usage: str) -> None:
        """A name that is none of the `known` ones of its `kind`."""
        notes: tuple[str, ...] = (f"form: {usage}",)
        if kind.startswith("verifier"):
            notes += ("a Python scorer has no brackets: it is given columns by the names of its parameters",)
        self.report_unknown("QP124", f"`{name}` is no {kind}", at(name), name.value, known, notes=notes)

    def form_fields(self, form: Form, cls: type[ast.Node], usage: str) -> dict[str, Any] | None:
        """The fields of a class that stand in the brackets of a form: by their places or by name, as declared.

        None where something about them is wrong, which is reported.
        """
        own = [(name, part) for name, part in ast.parts(cls) if part.is_inside]
        places = [(name, part) for name, part in own if not part.lead]
        options = {part.lead[:-1]: (name, part) for name, part in own if part.lead}
        least = sum(ast.usual(cls, name) is MISSING for name, _ in places)
        found = self._mixed(form, usage, least, len(places), tuple(options))
        if found is None:
            return None
        given = [*zip(places, found[0], strict=False), *((options[key], value) for key, value in found[1].items())]
        fields = {name: self._field(part, value, ast.usual(cls, name)) for (name, part), value in given}
        return None if None in fields.values() else fields

    def _field(self, part: ast.Role, value: ast.Expr, usual: Any) -> Any:
        """What an argument is as such a part, with this usual value; None where it is faulty."""
        if part.kind == "model":
            return self.model_of(value)
        if part.kind == "word":
            return self.word(part.lead[:-1], value, part.words, part.code, part.what)
        if part.template:
            return self.template_of(value, part.what)
        if part.kind != "plain":
            return value
        if not isinstance(usual, bool):
            return self.text_of(value, part.what) or None
        if isinstance(value, ast.Literal) and isinstance(value.value, bool):
            return value.value
        self.report("QP125", f"`{part.lead[:-1]}` is `true` or `false`", value.span, "expected true or false")
        return None

    def template_of(self, value: ast.Expr, what: str) -> ast.Template | None:
        """A string, into which values may be put; None where it is none, which is reported."""
        if isinstance(value, ast.Template):
            return value
        self.report("QP125", f"{what} is a string", value.span, "expected a string")
        return None

    def _mixed(
        self, form: Form, usage: str, least: int, most: int, options: tuple[str, ...]
    ) -> tuple[tuple[ast.Expr, ...], dict[str, ast.Expr]] | None:
        """The arguments that stand by their places, `least` to `most` of them, and the options by their names."""
        notes = (f"form: {usage}",)
        named: dict[str, ast.Argument] = {}
        for argument in form.arguments:
            if isinstance(argument, RangeArgument) or argument.name is None:
                continue
            name = argument.name
            if name in named:
                first = named[name].span
                self.report_repeated(f"`{name}`", argument.span, first)
                return None
            if name not in options:
                self.report_unknown_option(str(form.name), key_of(argument), name, options, usage)
                return None
            named[name] = argument
        plain = tuple(argument for argument in form.arguments if argument not in named.values())
        values = self.form_values(replace(form, arguments=plain), usage, None if plain else 0)
        if values is None:
            return None
        if not least <= len(values) <= most:
            counts = f"{least}" if least == most else f"{least} or {most}"
            expected = f"{counts} argument{'' if most == 1 else 's'} by {'its place' if most == 1 else 'their places'}"
            message = f"`{form.name}` takes {expected}, found {len(values)}"
            self.report("QP125", message, form.span, notes=notes)
            return None
        return values, {name: argument.value for name, argument in named.items()}

    def form_values(self, form: Form, usage: str, count: int | None) -> tuple[ast.Expr, ...] | None:
        """The arguments, which stand by their places: `count` of them, or one at least."""
        notes = (f"form: {usage}",)
        range_ = next((argument for argument in form.arguments if isinstance(argument, RangeArgument)), None)
        if range_ is not None:
            self.report("QP125", f"`{form.name}` takes no range here", range_.span, notes=notes)
            return None
        plain = [argument for argument in form.arguments if isinstance(argument, ast.Argument)]
        named = next((argument for argument in plain if argument.name), None)
        if named:
            message = f"`{form.name}` takes its arguments by their places, without names"
            fits = len(plain) == count if count is not None else True
            edit = Edit(Span(named.span.start, named.value.span.start), "") if fits else None
            help = f"leave `{named.name}=` out" if fits else f"leave `{named.name}` out"
            self.report("QP125", message, named.span, notes=notes, help=help, edit=edit)
            return None
        actual = len(plain)
        if actual != count if count is not None else not actual:
            expected = "arguments" if count is None else f"{count} argument{'' if count == 1 else 's'}"
            self.report("QP125", f"`{form.name}` takes {expected}, found {actual}", form.span, notes=notes)
            return None
        return tuple(argument.value for argument in plain)
