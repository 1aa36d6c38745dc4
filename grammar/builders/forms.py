"""Forms: the clauses, verifiers and targets that are a name with arguments, as `filter(slm, 0.9)`."""

from __future__ import annotations

from dataclasses import dataclass

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.leaves import Parts, at
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import CLAUSE_FORMS, LEVELS, STAGES, TARGETS, VIAS


@dataclass(frozen=True, slots=True)
class Form:
    """A name with arguments in brackets, not yet known to mean anything."""

    name: Token
    arguments: tuple[ast.Argument, ...]
    span: Span


class Forms(Parts):
    """What the forms mean. A faulty one is reported and gives None."""

    def held_to(self, form: Form) -> ast.Target | None:
        """`choice("a", "b")` or `grammar("file.lark")`."""
        if form.name == "choice":
            options = self.choices(form)
            return None if options is None else ast.ChoiceTarget(options, span=form.span)
        if form.name == "grammar":
            values = self._values(form, 'grammar("file.lark")', 1)
            path = self._text(values[0], "a path") if values else None
            return None if path is None else ast.GrammarTarget(path, span=form.span)
        self.unknown_form(form.name, "way to hold the output", TARGETS, CLAUSE_FORMS["as"])
        return None

    def decoded(self, form: Form) -> ast.Via | None:
        if form.name == "filter":
            values = self._values(form, "filter(MODEL, THRESHOLD)", 2)
            model = self._model(values[0]) if values else None
            return None if values is None or model is None else ast.Filter(model, values[1], span=form.span)
        if form.name == "amortized":
            values = self._values(form, "amortized(MARGIN)", 1)
            return None if values is None else ast.Amortized(values[0], span=form.span)
        self.unknown_form(form.name, "way to decode", VIAS, CLAUSE_FORMS["via"])
        return None

    def judge(self, form: Form) -> ast.Judge | None:
        if form.name != "judge":
            self.unknown_form(form.name, "verifier with arguments", ("judge",), STAGES["score"].usage)
            return None
        values = self._values(form, 'judge(MODEL, "rubric")', 2)
        model = self._model(values[0]) if values else None
        if values is None or model is None:
            return None
        rubric = values[1]
        if not isinstance(rubric, ast.Template):
            self.fault("QP125", "a rubric is a string", rubric.span, "expected a string")
            return None
        return ast.Judge(model, rubric, span=form.span)

    def level(self, form: Form | Token) -> ast.Within | None:
        """`exact`, `epsilon(1e-3)` or `loss(0.02)`."""
        name, span = (form.name, form.span) if isinstance(form, Form) else (form, at(form))
        if name not in LEVELS:
            self.unknown_form(name, "level", LEVELS, CLAUSE_FORMS["within"])
            return None
        if name == "exact":
            if isinstance(form, Form):
                self.fault("QP125", "`exact` takes no arguments", span, notes=(f"form: {CLAUSE_FORMS['within']}",))
            return ast.Within("exact", span=span)
        shape = "epsilon(1e-3)" if name == "epsilon" else "loss(0.02)"
        if not isinstance(form, Form):
            self.fault("QP125", f"`{name}` needs a bound", span, "without a bound", notes=(f"form: within {shape}",))
            return None
        values = self._values(form, shape, 1)
        bound = self.between(values[0], f"the bound of `{name}`", 0, 1 if name == "loss" else None) if values else None
        return None if bound is None else ast.Within(name.value, float(bound), span=span)

    def choices(self, form: Form) -> tuple[str, ...] | None:
        """The texts of `choice("a", "b")`: one at least, each once."""
        values = self._values(form, 'choice("a", "b")', None)
        if values is None:
            return None
        texts = [self._text(value, "a choice", empty=True) for value in values]
        for index, text in enumerate(texts):
            if text is not None and text in texts[:index]:
                self.fault("QP125", f'"{text}" is given twice', values[index].span, "again here")
                return None
        return None if None in texts else tuple(text for text in texts if text is not None)

    def between(self, value: ast.Expr, what: str, low: float, high: float | None) -> int | float | None:
        """A number that is written out, and within bounds."""
        number = self.constant(value)
        if number is None:
            self.fault("QP125", f"{what} is a number that is written out", value.span, "expected a number")
        elif number < low or (high is not None and number > high):
            wanted = f"at least {low}" if high is None else f"between {low} and {high}"
            self.fault("QP301", f"{what} is {wanted}", value.span)
            return None
        return number

    def unknown_form(self, name: Token, kind: str, known: tuple[str, ...], usage: str) -> None:
        near = closest(name.value, known)
        help, edit = (f"did you mean `{near}`?", Edit(at(name), near)) if near else (None, None)
        message, notes = f"`{name}` is no {kind}", (f"form: {usage}",)
        self.fault("QP124", message, at(name), notes=notes, help=help, edit=edit)

    def _values(self, form: Form, shape: str, count: int | None) -> tuple[ast.Expr, ...] | None:
        """The arguments, which stand by their places: `count` of them, or one at least."""
        notes = (f"form: {shape}",)
        named = next((argument for argument in form.arguments if argument.name), None)
        if named:
            message = f"`{form.name}` takes its arguments by their places, without names"
            edit = Edit(Span(named.span.start, named.value.span.start), "")
            self.fault("QP125", message, named.span, notes=notes, help=f"leave `{named.name}=` out", edit=edit)
            return None
        found = len(form.arguments)
        if found != count if count is not None else not found:
            wanted = "arguments" if count is None else f"{count} argument{'' if count == 1 else 's'}"
            self.fault("QP125", f"`{form.name}` takes {wanted}, found {found}", form.span, notes=notes)
            return None
        return tuple(argument.value for argument in form.arguments)

    def _model(self, value: ast.Expr) -> ast.ModelRef | None:
        if isinstance(value, ast.Name):
            return ast.ModelRef(value.id, False, span=value.span)
        if isinstance(value, ast.Template):
            return ast.ModelRef(self.plain(value, "a model id"), True, span=value.span)
        self.fault("QP125", "a model is a declared name or a quoted id", value.span, "expected a model")
        return None

    def _text(self, value: ast.Expr, what: str, *, empty: bool = False) -> str | None:
        if isinstance(value, ast.Template):
            return self.plain(value, what, empty=empty)
        self.fault("QP125", f"{what} is a string", value.span, "expected a string")
        return None
