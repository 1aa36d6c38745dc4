"""Clauses: what follows the options of a stage, or the parameters of a program, and begins with a word of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.forms import Form, FormBuilder
from qpdsl.grammar.builders.leaves import LeafBuilder, at, name_of, span_of
from qpdsl.grammar.builders.options import Option
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import CLAUSE_FORMS, SYSTEMS, TYPES

# What clauses begin with, where that is not the field that takes their value.
_WORDS = {"target": "as", "scale": "as", "budget": "within budget"}


@dataclass(slots=True)
class Clause:
    """A clause of `generate`, `score`, `call` or `program`; `value` is None where it was faulty.

    `word` is the field of the stage or program that takes the value.
    """

    word: str
    value: Any
    span: Span


class ClauseBuilder:
    def __init__(self, faults: Faults, leaves: LeafBuilder, forms: FormBuilder) -> None:
        self.faults = faults
        self.leaves = leaves
        self.forms = forms

    # Of stages

    def target(self, meta: Any, children: list[Any]) -> Clause:
        target = children[0]
        value: ast.Target | None
        if isinstance(target, ast.ListType | ast.RecordType):
            value = ast.TypeTarget(target, span=target.span)
        elif not isinstance(target, Token):
            value = target
        elif target.type == "REGEX":
            value = self.leaves.pattern(target)
        elif target.value in TYPES:
            value = ast.TypeTarget(ast.TypeRef(target.value, span=at(target)), span=at(target))
        else:
            value = ast.SchemaTarget(str(target), span=at(target))
        if isinstance(value, ast.TypeTarget) and self._is_text(value.type):
            message = "every output is a text, which `as text` would write as JSON"
            help = "leave `as` out; what the text may be is a regex: `as /.{1,40}/`"
            self.faults.report("QP360", message, value.span, help=help)
            value = None
        return Clause("target", value, span_of(meta))

    @staticmethod
    def _is_text(type_: ast.TypeExpr) -> bool:
        return isinstance(type_, ast.TextType) or (isinstance(type_, ast.TypeRef) and type_.name == "text")

    def via(self, meta: Any, children: list[Form]) -> Clause:
        return Clause("via", self.forms.via_of(children[0]), span_of(meta))

    def draft(self, meta: Any, children: list[ast.ModelRef | Form | Token]) -> Clause:
        return Clause("draft", self.forms.draft_of(children[0]), span_of(meta))

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

    # Of programs

    def within(self, meta: Any, children: list[Form | Token]) -> Clause:
        form = children[0]
        if (form.name if isinstance(form, Form) else form) == "budget":
            return Clause("budget", self.forms.budget_of(form), span_of(meta))
        return Clause("within", self.forms.within_of(form), span_of(meta))

    def like(self, meta: Any, children: list[Token]) -> Clause:
        name, span = children[0], span_of(meta)
        if name in SYSTEMS:
            return Clause("like", ast.Like("search_and_learn", span=span), span)
        self.forms.report_unknown(name, "system", SYSTEMS, CLAUSE_FORMS["like"])
        return Clause("like", None, span)

    def prefer(self, meta: Any, children: list[Option]) -> Clause:
        (key, value), span = children[0], span_of(meta)
        if key != "latency":
            message, notes = f"`prefer` has no option `{key}`", (f"form: {CLAUSE_FORMS['prefer']}",)
            edit = Edit(at(key), "latency")
            self.faults.report(
                "QP116", message, at(key), "unknown option", notes=notes, help="write `latency`", edit=edit
            )
            return Clause("prefer", None, span)
        number = self.leaves.number_between(value, "`latency`", 0, 1)
        return Clause("prefer", None if number is None else ast.Prefer(float(number), span=span), span)

    def values(self, clauses: list[Any]) -> dict[str, Any]:
        """The values of the clauses in a list, by word, each once; a repeated clause is reported and left out."""
        firsts: dict[str, Clause] = {}
        for clause in clauses:
            if not isinstance(clause, Clause):
                continue
            first = firsts.setdefault(clause.word, clause)
            if first is not clause:
                word = _WORDS.get(clause.word, clause.word)
                self.faults.report_repeated(f"`{word}`", clause.span, first.span)
        return {word: clause.value for word, clause in firsts.items()}
