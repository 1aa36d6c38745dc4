"""Options, `key=value`: which ones a stage or model takes, each at most once, and the words that some of them take."""

from __future__ import annotations

from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.leaves import at
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import DECLARATIONS, STAGES, VERIFIER_KINDS

Option = tuple[Token, ast.Expr]

# The codes for a word that an option does not take.
_WORD_CODES = {"reduce": "QP207", "equal": "QP126", "kind": "QP127"}


class OptionBuilder:
    """Reports unknown and repeated options, and leaves them out."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def option(self, meta: Any, children: list[Any]) -> Option:
        key, value = children
        return key, value

    def values(self, stage: str, options: list[Option]) -> dict[str, ast.Expr]:
        """The values of a stage's options, by name."""
        keys: dict[str, Token] = {}
        values: dict[str, ast.Expr] = {}
        for key, value in options:
            if key.value in keys:
                self.faults.report_repeated(f"option `{key}`", at(key), at(keys[key.value]))
            elif self.is_known(stage, key):
                keys[key.value] = key
                values[key.value] = value
        return values

    def is_known(self, stage: str, key: Token) -> bool:
        """Whether a stage has an option; one that it does not have is reported."""
        form = STAGES[stage]
        if key.value in form.options:
            return True
        kind = "role" if stage == "chat" else "option"
        message, notes = f"`{stage}` has no {kind} `{key}`", (f"form: {form.usage}",)
        self.faults.report_unknown("QP116", message, at(key), key.value, form.options, f"unknown {kind}", notes=notes)
        return False

    def verifier_kind(self, options: list[Option]) -> str | None:
        """The `kind` that a model is declared as; None where it is not given, or faulty."""
        kind: str | None = None
        for index, (key, value) in enumerate(options):
            if key.value != "kind":
                help, edit = ("write `kind`", Edit(at(key), "kind")) if closest(key.value, ("kind",)) else (None, None)
                message, notes = f"`model` has no option `{key}`", (f"form: {DECLARATIONS['model']}",)
                self.faults.report("QP116", message, at(key), "unknown option", notes=notes, help=help, edit=edit)
            elif index and options[0][0].value == "kind":
                self.faults.report_repeated("option `kind`", at(key), at(options[0][0]))
            else:
                kind = self.word("kind", value, VERIFIER_KINDS, "not a kind of verifier")
        return kind

    def word(self, option: str, value: ast.Expr | None, known: tuple[str, ...], label: str) -> Any:
        """One of the words that an option takes, the first of them where it is not given or faulty."""
        if value is None:
            return known[0]
        word = value.id if isinstance(value, ast.Name) else ""
        if word in known:
            return word
        if isinstance(value, ast.Template) and len(value.parts) == 1 and isinstance(value.parts[0], str):
            word = value.parts[0]
        message = f"`{option}` is one of {listed(known)}"
        self.faults.report_unknown(_WORD_CODES[option], message, value.span, word, known, label)
        return known[0]
