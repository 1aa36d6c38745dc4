"""The leaves of the syntax tree: tokens to names, values, patterns and options, with what is wrong with them."""

from __future__ import annotations

import math
from typing import Any

from lark import Token

from qpdsl.grammar import ast, regex, strings
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import REDUCES, STAGES

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

    def reduction(self, value: ast.Expr) -> str:
        if isinstance(value, ast.Name) and value.id in REDUCES:
            return value.id
        word = value.id if isinstance(value, ast.Name) else ""
        if isinstance(value, ast.Template) and len(value.parts) == 1 and isinstance(value.parts[0], str):
            word = value.parts[0]
        near = closest(word, REDUCES) if word else None
        fix = {"help": f"did you mean `{near}`?", "edit": Edit(value.span, near)} if near else {}
        self.fault("QP207", f"`reduce` is one of {listed(REDUCES)}", value.span, "not a way to reduce", **fix)
        return "last"

    def string(self, token: Token) -> ast.Template:
        value, faults = strings.template(str(token), token.start_pos or 0)
        self.faults += faults
        return value

    def plain(self, token: Token, what: str) -> str:
        value = self.string(token)
        names = [part for part in value.parts if isinstance(part, ast.Name)]
        if names:
            self.fault("QP123", f"{what} is a plain string, without `{{…}}`", names[0].span)
        elif not value.parts:
            self.fault("QP304", f"{what} cannot be empty", value.span)
        return "".join(part for part in value.parts if isinstance(part, str))

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
