"""The leaves of the syntax tree: tokens to names, values, patterns and options, with what is wrong with them."""

from __future__ import annotations

import math
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.literals import regex, strings
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import DECLARATIONS, KINDS, STAGES

Option = tuple[Token, ast.Expr]


class Parts:
    """Builds leaves, and collects `faults` on the way: a faulty leaf still gives a node, so that work can go on."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Diagnostic] = []

    def fault(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> None:
        self.faults.append(Diagnostic(code, message, span, label, **more))

    def options(self, stage: str, pairs: list[Option]) -> dict[str, ast.Expr]:
        """Values by option name, without the unknown and the repeated ones."""
        seen: dict[str, Token] = {}
        options: dict[str, ast.Expr] = {}
        for key, value in pairs:
            if key.value in seen:
                first = (Label(at(seen[key.value]), "the first"),)
                self.fault("QP117", f"option `{key}` is given twice", at(key), "again here", secondary=first)
            elif self.is_option(stage, key):
                seen[key.value] = key
                options[key.value] = value
        return options

    def is_option(self, stage: str, key: Token) -> bool:
        form = STAGES[stage]
        if key.value in form.options:
            return True
        kind = "role" if stage == "chat" else "option"
        near = closest(key.value, form.options)
        notes = (f"form: {form.usage}",)
        fix = {"help": f"did you mean `{near}`?", "edit": Edit(at(key), near)} if near else {}
        message = f"`{stage}` has no {kind} `{key}`"
        self.fault("QP116", message, at(key), f"unknown {kind}", notes=notes, **fix)
        return False

    def kind(self, pairs: list[Option]) -> str | None:
        """The kind that a model is declared as, None where it is not given or faulty."""
        found: str | None = None
        for index, (key, value) in enumerate(pairs):
            notes = (f"form: {DECLARATIONS['model']}",)
            if key.value != "kind":
                fix = {"help": "write `kind`", "edit": Edit(at(key), "kind")} if closest(key.value, ("kind",)) else {}
                self.fault("QP116", f"`model` has no option `{key}`", at(key), "unknown option", notes=notes, **fix)
            elif index and pairs[0][0].value == "kind":
                first = (Label(at(pairs[0][0]), "the first"),)
                self.fault("QP117", "option `kind` is given twice", at(key), "again here", secondary=first)
            else:
                found = self.word("kind", value, KINDS, "not a kind of verifier")
        return found

    def word(self, option: str, value: ast.Expr | None, known: tuple[str, ...], label: str) -> Any:
        """One of the words that an option takes, the first of them where it is not given or faulty."""
        if value is None:
            return known[0]
        found = value.id if isinstance(value, ast.Name) else ""
        if found in known:
            return found
        if isinstance(value, ast.Template) and len(value.parts) == 1 and isinstance(value.parts[0], str):
            found = value.parts[0]
        near = closest(found, known) if found else None
        fix = {"help": f"did you mean `{near}`?", "edit": Edit(value.span, near)} if near else {}
        code = {"reduce": "QP207", "kind": "QP127"}.get(option, "QP126")
        self.fault(code, f"`{option}` is one of {listed(known)}", value.span, label, **fix)
        return known[0]

    def string(self, token: Token) -> ast.Template:
        value, faults = strings.template(str(token), token.start_pos or 0)
        self.faults += faults
        return value

    def plain(self, value: ast.Template, what: str, *, empty: bool = False) -> str:
        """The text of a string that interpolates nothing; `empty` says that it may be empty."""
        names = [part for part in value.parts if isinstance(part, ast.Name)]
        if names:
            self.fault("QP123", f"{what} is a plain string, without `{{…}}`", names[0].span)
        elif not value.parts and not empty:
            self.fault("QP304", f"{what} cannot be empty", value.span)
        return "".join(part for part in value.parts if isinstance(part, str))

    def constant(self, value: ast.Expr) -> int | float | None:
        """The number that is written out, with its sign; None where it is none."""
        sign = 1
        if isinstance(value, ast.Unary) and value.op == "-":
            sign, value = -1, value.operand
        if isinstance(value, ast.Literal) and type(value.value) in (int, float):
            return sign * value.value  # type: ignore[operator]
        return None

    def number(self, token: Token) -> ast.Literal:
        whole = token.value.isdigit()
        if len(token) > 400 or (not whole and not math.isfinite(float(token))):
            self.fault("QP301", "this number is too large", at(token))
            return ast.Literal(0, span=at(token))
        return ast.Literal(int(token) if whole else float(token), span=at(token))

    def pattern(self, token: Token) -> ast.Regex:
        start = (token.start_pos or 0) + 1
        fault = regex.check(token.value[1:-1], start)
        if fault:
            self.faults.append(fault)
        return ast.Regex(token.value[1:-1], span=at(token))


def span_of(meta: Any) -> Span:
    return Span(meta.start_pos, meta.end_pos)


def at(token: Token) -> Span:
    return Span(token.start_pos or 0, token.end_pos or 0)


def name_of(token: Token) -> ast.Name:
    return ast.Name(str(token), span=at(token))


def path_of(token: Token) -> ast.JsonPath:
    steps = token.value.replace("[", ".[").split(".")
    return ast.JsonPath(tuple(int(s[1:-1]) if s[0] == "[" else s for s in steps if s), span=at(token))
