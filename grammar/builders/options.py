"""Options, `key=value`: which ones a stage or model takes, each at most once, and the words that some of them take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.leaves import LeafBuilder, at
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import DECLARATIONS, MODEL_OPTIONS, STAGES

Option = tuple[Token, ast.Expr]

# The codes for a word that an option does not take.
_WORD_CODES = {"reduce": "QP207", "equal": "QP126", "kind": "QP127"}


class OptionBuilder:
    """Reports unknown and repeated options, and leaves them out."""

    def __init__(self, faults: Faults, leaves: LeafBuilder) -> None:
        self.faults = faults
        self.leaves = leaves

    def option(self, meta: Any, children: list[Any]) -> Option:
        key, value = children
        return key, value

    def stop(self, meta: Any, children: list[Any]) -> Option:
        """The one option whose value may be a regex."""
        key, value = children
        return key, self.leaves.pattern(value) if isinstance(value, Token) else value

    def values(self, stage: str, options: list[Option]) -> dict[str, ast.Expr]:
        """The values of a stage's options, by name."""
        return self._values(options, lambda key: self.is_known(stage, key))

    def values_of_model(self, options: list[Option]) -> dict[str, ast.Expr]:
        """The values of a declared model's options, by name."""
        return self._values(options, self._is_known_of_model)

    def _values(self, options: list[Option], is_known: Callable[[Token], bool]) -> dict[str, ast.Expr]:
        keys: dict[str, Token] = {}
        values: dict[str, ast.Expr] = {}
        for key, value in options:
            if key.value in keys:
                self.faults.report_repeated(f"option `{key}`", at(key), at(keys[key.value]))
            elif is_known(key):
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

    def _is_known_of_model(self, key: Token) -> bool:
        if key.value in MODEL_OPTIONS:
            return True
        message, notes = f"`model` has no option `{key}`", (f"form: {DECLARATIONS['model']}",)
        near = closest(key.value, MODEL_OPTIONS)
        help, edit = (f"write `{near}`", Edit(at(key), near)) if near else (None, None)
        self.faults.report("QP116", message, at(key), "unknown option", notes=notes, help=help, edit=edit)
        return False

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
