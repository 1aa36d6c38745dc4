"""The verifiers that are a name with arguments, as `judge(llm, "…", 1..5)` and `passes(tests)`, and `compare(…)`.

What a form says are the fields of a class of `Score`, those aside that all verifiers share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.builders.expressions import constant, span_of
from qpdsl.grammar.builders.forms import Form, FormBuilder, RangeArgument
from qpdsl.grammar.words import VERIFIER_FORMS

Fields = dict[str, Any]
Verifier = tuple[type[ast.Score], Fields]
# The most whole numbers that a judge may choose among.
_MAX_MARKS = 1000
# A number with more digits than this could be longer than the answer that a judge may give.
_LARGEST_MARK = 999_999_999
SCALES = f"a scale holds 2 to {_MAX_MARKS:,} whole numbers, the lowest first, of nine digits at most"


def is_scale(low: object, high: object) -> bool:
    """Whether a judge can answer with the numbers from `low` to `high`."""
    if type(low) is not int or type(high) is not int:
        return False
    return low < high < low + _MAX_MARKS and max(-low, high) <= _LARGEST_MARK


class VerifierFormBuilder(FormBuilder):
    """What the forms mean. A faulty one is reported and gives None."""

    def tournament(self, meta: Any, children: list[Any]) -> ast.Tournament | ast.Literal:
        """`compare(MODEL, "question", both=true)`; a number where it is faulty. `children`: the word, the arguments."""
        form = Form(children[0], children[1] or (), span_of(meta))
        found = self.form_fields(form, ast.Tournament, _usage("compare"))
        return ast.Literal(0, span=form.span) if found is None else ast.Tournament(**found, span=form.span)

    def verifier_of(self, form: Form, scale: Form | None) -> Verifier:
        """The verifier that a form is, any other where it is faulty. `scale` is what follows `as`, if anything does."""
        if scale is not None and form.name != "judge":
            message = f"`{form.name}` is asked for no number, and `as` holds a judge's answer to some"
            self.report("QP140", message, scale.span, "leave this out", notes=(f"form: {_usage('judge')}",))
        known: dict[str, tuple[type[ast.Score], Callable[[], Fields | None]]] = {
            "judge": (ast.Judge, lambda: self._judge(form, scale)),
            "prob": (ast.Prob, lambda: self._prob(form)),
            "likelihood": (ast.Likelihood, lambda: self._prob(form, 3)),
            "equal": (ast.Equal, lambda: self.form_fields(form, ast.Equal, _usage("equal"))),
            "json": (ast.ValidJson, lambda: self._json(form)),
            "passes": (ast.Passes, lambda: self.form_fields(form, ast.Passes, _usage("passes"))),
            "confidence": (ast.DrawScore, lambda: self.confidence(form)),
        }
        found = known.get(form.name.value)
        if found is None:
            self.report_unknown_form(form.name, "verifier with arguments", tuple(known), STAGES["score"].usage)
        fields = None if found is None else found[1]()
        if found is None or fields is None:
            return ast.StepScore, {"verifier": ast.ModelRef("logprob", False, span=form.span)}
        return found[0], fields

    def _judge(self, form: Form, scale: Form | None) -> Fields | None:
        """`judge(MODEL, "rubric", LOW..HIGH)`, or `judge(MODEL, "question") as int(LOW..HIGH)`."""
        if scale is not None:
            return self._asked_judge(form, scale)
        numbers = form.arguments[-1] if form.arguments else None
        if not isinstance(numbers, RangeArgument):
            message = "`judge` needs a scale: the whole numbers that it may answer"
            help = 'write the lowest and the highest, as in `judge(llm, "Rate the text.", 1..5)`'
            self.report("QP125", message, form.span, "no scale", notes=(f"form: {_usage('judge')}",), help=help)
            return None
        marks = self._marks(numbers)
        values = self.form_values(replace(form, arguments=form.arguments[:-1]), _usage("judge"), 2)
        model = self.model_of(values[0]) if values else None
        rubric = self.template_of(values[1], "a rubric") if values and model is not None and marks is not None else None
        if model is None or marks is None or rubric is None:
            return None
        return {"model": model, "rubric": rubric, "low": marks[0], "high": marks[1]}

    def _asked_judge(self, form: Form, scale: Form) -> Fields | None:
        numbers = scale.arguments[0] if len(scale.arguments) == 1 else None
        if scale.name != "int" or not isinstance(numbers, RangeArgument):
            message = "a judge answers with a whole number of a range"
            help = "write the lowest and the highest, as in `as int(1..5)`"
            self.report("QP140", message, scale.span, "no scale", help=help)
            return None
        marks = self._marks(numbers)
        if form.arguments and isinstance(form.arguments[-1], RangeArgument):
            message = "this judge has two scales: one between its brackets, and one after `as`"
            self.report("QP140", message, form.arguments[-1].span, "leave one of them out")
            return None
        values = self.form_values(form, _usage("judge"), 2)
        model = self.model_of(values[0]) if values else None
        question = self.template_of(values[1], "a question") if values and model is not None else None
        if model is None or question is None or marks is None:
            return None
        return {"model": model, "rubric": question, "low": marks[0], "high": marks[1], "whole": True}

    def _prob(self, form: Form, most: int | None = None) -> Fields | None:
        """A model, a question, and what may answer it."""
        name = form.name.value
        values = self.form_values(form, _usage(name), most)
        if values is None:
            return None
        if len(values) < 3:
            message = f"`{name}` takes a model, a question and an answer, found {len(values)}"
            self.report("QP125", message, form.span, notes=(f"form: {_usage(name)}",))
            return None
        model, question = self.model_of(values[0]), self.template_of(values[1], "a question")
        if model is None or question is None:
            return None
        texts = tuple(values[2:])
        for index, text in enumerate(texts):
            if text in texts[:index]:
                self.report("QP125", "this answer is given twice", text.span, "again here")
                return None
            if isinstance(text, ast.Template) and not text.parts:
                self.report("QP304", "an answer cannot be empty", text.span)
                return None
        return {"model": model, "question": question, "answers": texts}

    def _json(self, form: Form) -> Fields | None:
        values = self.form_values(form, _usage("json"), 1)
        if values is None:
            return None
        name = values[0]
        if isinstance(name, ast.Path) and all(isinstance(step, str) for step in name.steps):
            # A schema of a file with a name of its own.
            name = ast.Name(".".join((name.base.id, *map(str, name.steps))), span=name.span)
        if not isinstance(name, ast.Name):
            self.report("QP125", "`json` takes the name of a schema", name.span, "expected a schema")
            return None
        return {"schema": name}

    def confidence(self, form: Form) -> Fields | None:
        """`confidence(window=TOKENS)`."""
        found = self.form_fields(form, ast.DrawScore, _usage("confidence"))
        if found is not None and not found:
            self.report("QP125", "`confidence` has empty brackets", form.span, help="leave the brackets out")
        return found or None

    def _marks(self, scale: RangeArgument) -> tuple[int, int] | None:
        """The lowest and the highest number of a judge's scale; None where it is faulty, which is reported."""
        marks: list[int] = []
        for bound in (scale.low, scale.high):
            number = None if bound is None else constant(bound)
            if not isinstance(number, int):
                message, span = "a scale has a whole number at both ends", scale.span if bound is None else bound.span
                notes = (f"form: {_usage('judge')}",)
                self.report("QP125", message, span, "expected a whole number", notes=notes)
                return None
            marks.append(number)
        low, high = marks
        if is_scale(low, high):
            return low, high
        self.report("QP301", SCALES, scale.span, f"{low} to {high}")
        return None


def _usage(name: str) -> str:
    return VERIFIER_FORMS[name]
