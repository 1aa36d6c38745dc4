"""The verifiers that are a name with arguments, as `judge(llm, "…", 1..5)` and `passes(tests)`, and `compare(…)`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.forms import Form, FormBuilder, RangeArgument
from qpdsl.grammar.builders.leaves import LeafBuilder, constant, span_of
from qpdsl.grammar.builders.options import OptionBuilder
from qpdsl.grammar.words import EQUALITIES, STAGES, VERIFIER_FORMS

# The most whole numbers that a judge may choose among.
_MOST_MARKS = 1000
# A number with more digits than this could be longer than the answer that a judge may give.
_LARGEST_MARK = 999_999_999
SCALES = f"a scale holds 2 to {_MOST_MARKS:,} whole numbers, the lowest first, of nine digits at most"


def is_scale(low: object, high: object) -> bool:
    """Whether a judge can answer with the numbers from `low` to `high`."""
    if type(low) is not int or type(high) is not int:
        return False
    return low < high < low + _MOST_MARKS and max(-low, high) <= _LARGEST_MARK


class VerifierFormBuilder:
    """What the forms mean. A faulty one is reported and gives None."""

    def __init__(self, faults: Faults, leaves: LeafBuilder, forms: FormBuilder, options: OptionBuilder) -> None:
        self.faults = faults
        self.leaves = leaves
        self.forms = forms
        self.options = options

    def tournament(self, meta: Any, children: list[Any]) -> ast.Compare | ast.Literal:
        """`compare(MODEL, "question", both=true)`; a number where it is faulty. `children`: the word, the arguments."""
        form = Form(children[0], children[1] or (), span_of(meta))
        return self._compare(form) or ast.Literal(0, span=form.span)

    def _compare(self, form: Form) -> ast.Compare | None:
        found = self.forms.mixed(form, VERIFIER_FORMS["compare"], 2, 2, ("both",))
        if found is None:
            return None
        (place, question), named = found
        model, both = self.leaves.model_of(place), named.get("both")
        if both is not None and not (isinstance(both, ast.Literal) and isinstance(both.value, bool)):
            self.faults.report("QP125", "`both` is `true` or `false`", both.span, "expected true or false")
            return None
        asked = self._template(question, "a question")
        if model is None or asked is None:
            return None
        return ast.Compare(model, asked, both is None or both.value is True, span=form.span)

    def verifier_of(self, form: Form, scale: Form | None) -> ast.Verifier | None:
        """The verifier that a form is; `scale` is what follows `as`, None where nothing does."""
        if scale is not None and form.name != "judge":
            message = f"`{form.name}` is asked for no number, and `as` holds a judge's answer to some"
            self.faults.report("QP140", message, scale.span, "leave this out", notes=(f"form: {_usage('judge')}",))
        match form.name.value:
            case "judge":
                return self._judge(form, scale)
            case "prob":
                return self._prob(form)
            case "equal":
                return self._equal(form)
            case "json":
                return self._json(form)
            case "passes":
                return self._passes(form)
            case "confidence":
                return self._confidence(form)
        known = tuple(name for name in VERIFIER_FORMS if name != "compare")
        self.forms.report_unknown(form.name, "verifier with arguments", known, STAGES["score"].usage)
        return None

    def _judge(self, form: Form, scale: Form | None) -> ast.Judge | None:
        """`judge(MODEL, "rubric", LOW..HIGH)`, or `judge(MODEL, "question") as int(LOW..HIGH)`."""
        if scale is not None:
            return self._asked_judge(form, scale)
        numbers = form.arguments[-1] if form.arguments else None
        if not isinstance(numbers, RangeArgument):
            message = "`judge` needs a scale: the whole numbers that it may answer"
            help = 'write the lowest and the highest, as in `judge(llm, "Rate the text.", 1..5)`'
            self.faults.report("QP125", message, form.span, "no scale", notes=(f"form: {_usage('judge')}",), help=help)
            return None
        marks = self._marks(numbers)
        values = self.forms.values(replace(form, arguments=form.arguments[:-1]), _usage("judge"), 2)
        model = self.leaves.model_of(values[0]) if values else None
        rubric = self._template(values[1], "a rubric") if values and model is not None and marks is not None else None
        return None if model is None or marks is None or rubric is None else ast.Judge(
            model, rubric, *marks, span=form.span
        )  # fmt: skip

    def _asked_judge(self, form: Form, scale: Form) -> ast.Judge | None:
        numbers = scale.arguments[0] if len(scale.arguments) == 1 else None
        if scale.name != "int" or not isinstance(numbers, RangeArgument):
            message = "a judge answers with a whole number of a range"
            help = "write the lowest and the highest, as in `as int(1..5)`"
            self.faults.report("QP140", message, scale.span, "no scale", help=help)
            return None
        marks = self._marks(numbers)
        if form.arguments and isinstance(form.arguments[-1], RangeArgument):
            message = "this judge has two scales: one between its brackets, and one after `as`"
            self.faults.report("QP140", message, form.arguments[-1].span, "leave one of them out")
            return None
        values = self.forms.values(form, _usage("judge"), 2)
        model = self.leaves.model_of(values[0]) if values else None
        question = self._template(values[1], "a question") if values and model is not None else None
        if model is None or question is None or marks is None:
            return None
        return ast.Judge(model, question, *marks, True, span=form.span)

    def _prob(self, form: Form) -> ast.Prob | None:
        values = self.forms.values(form, _usage("prob"), None)
        if values is None:
            return None
        if len(values) < 3:
            message = f"`prob` takes a model, a question and an answer, found {len(values)}"
            self.faults.report("QP125", message, form.span, notes=(f"form: {_usage('prob')}",))
            return None
        model, question = self.leaves.model_of(values[0]), self._template(values[1], "a question")
        answers = [self._template(value, "an answer") for value in values[2:]]
        if model is None or question is None or None in answers:
            return None
        texts = tuple(answer for answer in answers if answer is not None)
        for index, text in enumerate(texts):
            if text in texts[:index]:
                self.faults.report("QP125", "this answer is given twice", text.span, "again here")
                return None
            if not text.parts:
                self.faults.report("QP304", "an answer cannot be empty", text.span)
                return None
        return ast.Prob(model, question, texts, span=form.span)

    def _equal(self, form: Form) -> ast.Equal | None:
        found = self.forms.mixed(form, _usage("equal"), 2, 2, ("by",))
        if found is None:
            return None
        (answer, reference), named = found
        by = self.options.word("equal", named.get("by"), EQUALITIES, "not a way to compare")
        return ast.Equal(answer, reference, by, span=form.span)

    def _json(self, form: Form) -> ast.ValidJson | None:
        values = self.forms.values(form, _usage("json"), 1)
        if values is None:
            return None
        name = values[0]
        if isinstance(name, ast.Path) and all(isinstance(step, str) for step in name.steps):
            # A schema of a file with a name of its own.
            name = ast.Name(".".join((name.base.id, *map(str, name.steps))), span=name.span)
        if not isinstance(name, ast.Name):
            self.faults.report("QP125", "`json` takes the name of a schema", name.span, "expected a schema")
            return None
        return ast.ValidJson(name, span=form.span)

    def _passes(self, form: Form) -> ast.Passes | None:
        found = self.forms.mixed(form, _usage("passes"), 1, 1, ("timeout",))
        if found is None:
            return None
        (tests,), named = found
        return ast.Passes(tests, named.get("timeout"), span=form.span)

    def _confidence(self, form: Form) -> ast.WindowConfidence | None:
        found = self.forms.mixed(form, VERIFIER_FORMS["confidence"], 0, 0, ("window",))
        if found is None:
            return None
        window = found[1].get("window")
        if window is None:
            self.faults.report("QP125", "`confidence` has empty brackets", form.span, help="leave the brackets out")
            return None
        return ast.WindowConfidence(window, span=form.span)

    def _template(self, value: ast.Expr, what: str) -> ast.Template | None:
        if isinstance(value, ast.Template):
            return value
        self.faults.report("QP125", f"{what} is a string", value.span, "expected a string")
        return None

    def _marks(self, scale: RangeArgument) -> tuple[int, int] | None:
        """The lowest and the highest number of a judge's scale; None where it is faulty, which is reported."""
        marks: list[int] = []
        for bound in (scale.low, scale.high):
            number = None if bound is None else constant(bound)
            if not isinstance(number, int):
                message, span = "a scale has a whole number at both ends", scale.span if bound is None else bound.span
                notes = (f"form: {_usage('judge')}",)
                self.faults.report("QP125", message, span, "expected a whole number", notes=notes)
                return None
            marks.append(number)
        low, high = marks
        if is_scale(low, high):
            return low, high
        self.faults.report("QP301", SCALES, scale.span, f"{low} to {high}")
        return None


def _usage(name: str) -> str:
    return VERIFIER_FORMS[name]
