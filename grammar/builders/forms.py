"""Forms: the targets, ways to decode and levels that are a name with arguments, as `filter(slm, 0.9)`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.leaves import LeafBuilder, at, span_of
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import (
    AMORTIZED_OPTIONS,
    BOUNDED_LEVELS,
    BUDGET_FORM,
    BUDGET_UNITS,
    CLAUSE_FORMS,
    CONFIDENCES,
    DRAFT_OPTIONS,
    DRAFTS,
    FILTER_OPTIONS,
    LEVELS,
    MOST_DRAFTED,
    TARGETS,
    VIAS,
    Confidence,
)

_FILTER = "filter(MODEL, THRESHOLD, by=probability|margin|entropy, rows=N, wait=SECONDS) or filter(MODEL, share=S, …)"
_AMORTIZED = 'amortized(MARGIN, layer=L, rerank=K, head="folder", certify=E)'


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


class FormBuilder:
    """What forms mean. A faulty one is reported and gives None."""

    def __init__(self, faults: Faults, leaves: LeafBuilder) -> None:
        self.faults = faults
        self.leaves = leaves

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
        """`choice("a", "b")` or `grammar("file.lark")`."""
        if form.name == "choice":
            options = self.choices_of(form)
            return None if options is None else ast.ChoiceTarget(options, span=form.span)
        if form.name == "grammar":
            values = self.values(form, 'grammar("file.lark")', 1)
            path = self.leaves.text_of(values[0], "a path") if values else None
            return None if path is None else ast.GrammarTarget(path, span=form.span)
        self.report_unknown(form.name, "way to hold the output", TARGETS, CLAUSE_FORMS["as"])
        return None

    def via_of(self, form: Form) -> ast.Via | None:
        """`filter(MODEL, THRESHOLD, …)` or `amortized(MARGIN, …)`."""
        if form.name == "filter":
            return self._filter(form)
        if form.name == "amortized":
            return self._amortized(form)
        self.report_unknown(form.name, "way to decode", VIAS, CLAUSE_FORMS["via"])
        return None

    def _filter(self, form: Form) -> ast.Filter | None:
        found = self.mixed(form, _FILTER, 1, 2, FILTER_OPTIONS)
        if found is None:
            return None
        (place, *thresholds), named = found
        model = self.leaves.model_of(place)
        threshold, share = thresholds[0] if thresholds else None, named.get("share")
        if (threshold is None) == (share is None):
            message = "`filter` takes a threshold or a `share`" + (", not both" if share is not None else "")
            self.faults.report("QP125", message, form.span, notes=(f"form: {_FILTER}",))
            return None
        by: Confidence = "probability"
        confidence = named.pop("by", None)
        if confidence is not None:
            word = confidence.id if isinstance(confidence, ast.Name) else ""
            known = next((name for name in CONFIDENCES if name == word), None)
            if known is None:
                message, span = f"`by` is one of {listed(CONFIDENCES)}", confidence.span
                self.faults.report_unknown("QP125", message, span, word, CONFIDENCES, "no confidence")
                return None
            by = known
        return None if model is None else ast.Filter(model, threshold, by, **named, span=form.span)

    def _amortized(self, form: Form) -> ast.Amortized | None:
        found = self.mixed(form, _AMORTIZED, 0, 1, AMORTIZED_OPTIONS)
        if found is None:
            return None
        margins, named = found
        if not margins and "certify" not in named:
            message = "`amortized` takes a margin, or `certify` in its place"
            self.faults.report("QP125", message, form.span, notes=(f"form: {_AMORTIZED}",))
            return None
        head = named.pop("head", None)
        place = None if head is None else self.leaves.text_of(head, "the folder of an exit head")
        if head is not None and not place:
            return None
        return ast.Amortized(margins[0] if margins else None, head=place, **named, span=form.span)

    def draft_of(self, value: ast.ModelRef | Form | Token) -> ast.Draft | None:
        """A model, `ngram("texts.txt")`, `early_exit("folder")`, `eagle("folder")` or `none`, options in brackets."""
        if isinstance(value, Token):
            return ast.Draft("none", span=at(value))
        span = value.span
        arguments: tuple[ast.Argument | RangeArgument, ...] = ()
        if isinstance(value, ast.ModelRef):
            name, model = "" if value.quoted else value.name, value
        else:
            name, arguments = value.name.value if value.name.type == "NAME" else "", value.arguments
            model = self.leaves.model_ref_at(value.name)
        place, options = self._draft_arguments(name, arguments, span)
        if name == "eagle" and place is None:
            self._misfit("`eagle` needs the folder of its head", span)
            return None
        if name in DRAFTS:
            return ast.Draft(name, None, place, **options, span=span)  # type: ignore[arg-type]
        return ast.Draft("model", model, None, **options, span=span)

    def _draft_arguments(
        self, name: str, arguments: tuple[ast.Argument | RangeArgument, ...], span: Span
    ) -> tuple[str | None, dict[str, int]]:
        """The file or folder, and the options; faulty ones are reported and left out."""
        place: str | None = None
        options: dict[str, int] = {}
        for argument in arguments:
            if isinstance(argument, RangeArgument):
                self._misfit("`draft` takes no range", argument.span)
            elif argument.name is None:
                if name not in DRAFTS or place is not None:
                    self._misfit("`draft` takes no such argument here", argument.span)
                else:
                    what = "a file of texts" if name == "ngram" else "the folder of a head"
                    place = self.leaves.text_of(argument.value, what)
            elif argument.name not in DRAFT_OPTIONS:
                notes = (f"form: {CLAUSE_FORMS['draft']}",)
                message = f"`draft` has no option `{argument.name}`"
                place_of_name = Span(argument.span.start, argument.span.start + len(argument.name))
                self.faults.report_unknown(
                    "QP116", message, place_of_name, argument.name, DRAFT_OPTIONS, "unknown option", notes=notes
                )
            elif argument.name in options:
                self._misfit(f"`{argument.name}` is given twice", argument.span)
            else:
                number = self.leaves.number_between(argument.value, f"`{argument.name}` of `draft`", 1, MOST_DRAFTED)
                if isinstance(number, float):
                    self._misfit(f"`{argument.name}` of `draft` is a whole number", argument.value.span)
                elif number is not None:
                    options[argument.name] = number
        return place, options

    def _misfit(self, message: str, span: Span) -> None:
        self.faults.report("QP125", message, span, notes=(f"form: {CLAUSE_FORMS['draft']}",))

    def budget_of(self, form: Form | Token) -> ast.Budget | None:
        """`budget(tokens=2000)`: one amount, of a unit that is named, over 0."""
        span, notes = form.span if isinstance(form, Form) else at(form), (f"form: within {BUDGET_FORM}",)
        arguments = form.arguments if isinstance(form, Form) else ()
        if len(arguments) != 1 or not isinstance(arguments[0], ast.Argument) or arguments[0].name is None:
            message = "a budget is one amount, with the name of what it counts"
            self.faults.report("QP142", message, span, "expected one amount", notes=notes)
            return None
        unit = next((unit for unit in BUDGET_UNITS if unit == arguments[0].name), None)
        if unit is None:
            key = Span(arguments[0].span.start, arguments[0].span.start + len(arguments[0].name))
            message = f"a budget counts no `{arguments[0].name}`"
            self.faults.report_unknown("QP142", message, key, arguments[0].name, BUDGET_UNITS, notes=notes)
            return None
        amount = self.leaves.number_between(arguments[0].value, f"the budget in {unit}", 0, None)
        if amount == 0:
            self.faults.report("QP301", "a budget is over 0", arguments[0].value.span, "nothing can be run with this")
        return ast.Budget(unit, float(amount), span=span) if amount else None

    def within_of(self, form: Form | Token) -> ast.Within | None:
        """`exact`, `replayable`, `recorded`, `epsilon(1e-3)` or `loss(0.02)`."""
        name, span = (form.name, form.span) if isinstance(form, Form) else (form, at(form))
        if name not in LEVELS:
            self.report_unknown(name, "level", LEVELS, CLAUSE_FORMS["within"])
            return None
        level = next(level for level in LEVELS if level == name)
        if level not in BOUNDED_LEVELS:
            if isinstance(form, Form):
                notes = (f"form: {CLAUSE_FORMS['within']}",)
                self.faults.report("QP125", f"`{name}` takes no arguments", span, notes=notes)
            return ast.Within(level, span=span)
        usage = "epsilon(1e-3)" if name == "epsilon" else "loss(0.02)"
        if not isinstance(form, Form):
            notes = (f"form: within {usage}",)
            self.faults.report("QP125", f"`{name}` needs a bound", span, "without a bound", notes=notes)
            return None
        values = self.values(form, usage, 1)
        if values is None:
            return None
        greatest = 1 if name == "loss" else None
        bound = self.leaves.number_between(values[0], f"the bound of `{name}`", 0, greatest)
        return None if bound is None else ast.Within(level, float(bound), span=span)

    def choices_of(self, form: Form) -> tuple[str, ...] | None:
        """The texts of `choice("a", "b")`: one at least, each once."""
        values = self.values(form, 'choice("a", "b")', None)
        if values is None:
            return None
        texts = [self.leaves.text_of(value, "a choice", empty=True) for value in values]
        for index, text in enumerate(texts):
            if text is not None and text in texts[:index]:
                self.faults.report("QP125", f'"{text}" is given twice', values[index].span, "again here")
                return None
        return None if None in texts else tuple(text for text in texts if text is not None)

    def report_unknown(self, name: Token, kind: str, known: tuple[str, ...], usage: str) -> None:
        """A name that is none of the `known` ones of its `kind`."""
        notes = (f"form: {usage}",)
        self.faults.report_unknown("QP124", f"`{name}` is no {kind}", at(name), name.value, known, notes=notes)

    def mixed(
        self, form: Form, usage: str, least: int, most: int, options: tuple[str, ...]
    ) -> tuple[tuple[ast.Expr, ...], dict[str, ast.Expr]] | None:
        """The arguments that stand by their places, `least` to `most` of them, and the options by their names.

        None where something about them is wrong, which is reported.
        """
        notes = (f"form: {usage}",)
        named: dict[str, ast.Argument] = {}
        for argument in form.arguments:
            if isinstance(argument, RangeArgument) or argument.name is None:
                continue
            name, span = argument.name, Span(argument.span.start, argument.span.start + len(argument.name))
            if name in named:
                first = named[name].span
                self.faults.report_repeated(f"`{name}`", argument.span, first)
                return None
            if name not in options:
                message = f"`{form.name}` has no option `{name}`"
                self.faults.report_unknown("QP116", message, span, name, options, "unknown option", notes=notes)
                return None
            named[name] = argument
        plain = tuple(argument for argument in form.arguments if argument not in named.values())
        values = self.values(replace(form, arguments=plain), usage, None if plain else 0)
        if values is None:
            return None
        if not least <= len(values) <= most:
            counts = f"{least}" if least == most else f"{least} or {most}"
            expected = f"{counts} argument{'' if most == 1 else 's'} by {'its place' if most == 1 else 'their places'}"
            message = f"`{form.name}` takes {expected}, found {len(values)}"
            self.faults.report("QP125", message, form.span, notes=notes)
            return None
        return values, {name: argument.value for name, argument in named.items()}

    def values(self, form: Form, usage: str, count: int | None) -> tuple[ast.Expr, ...] | None:
        """The arguments, which stand by their places: `count` of them, or one at least."""
        notes = (f"form: {usage}",)
        range_ = next((argument for argument in form.arguments if isinstance(argument, RangeArgument)), None)
        if range_ is not None:
            self.faults.report("QP125", f"`{form.name}` takes no range here", range_.span, notes=notes)
            return None
        plain = [argument for argument in form.arguments if isinstance(argument, ast.Argument)]
        named = next((argument for argument in plain if argument.name), None)
        if named:
            message = f"`{form.name}` takes its arguments by their places, without names"
            edit = Edit(Span(named.span.start, named.value.span.start), "")
            self.faults.report("QP125", message, named.span, notes=notes, help=f"leave `{named.name}=` out", edit=edit)
            return None
        actual = len(plain)
        if actual != count if count is not None else not actual:
            expected = "arguments" if count is None else f"{count} argument{'' if count == 1 else 's'}"
            self.faults.report("QP125", f"`{form.name}` takes {expected}, found {actual}", form.span, notes=notes)
            return None
        return tuple(argument.value for argument in plain)
