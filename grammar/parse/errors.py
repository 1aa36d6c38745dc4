"""Why a text does not parse, in the language's own words.

A failure is explained by the first of these that fits: the statement begins with a wrong word; a reserved word stands
for a name; it is a known mistake (`mistakes.py`); else by what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lark.exceptions import UnexpectedInput

from qpdsl.grammar.ast.stage import STAGES, synonyms
from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.parse.failure import ParseFailure, failure_of
from qpdsl.grammar.parse.layout import Layout
from qpdsl.grammar.parse.mistakes import known_mistake
from qpdsl.grammar.parse.tokens import Token
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, did_you_mean, enumerated
from qpdsl.grammar.words import DECLARATIONS, RESERVED

# The grammar's tokens that begin an expression, and those that go on with one.
_EXPRESSION = frozenset({"NUMBER", "STRING", "NAME", "LPAR", "LSQB", "LBRACE", "MINUS", "NOT", "TRUE", "FALSE", "NONE"})
_COMPARISONS = frozenset({"EQ", "NE", "LE", "GE", "LT", "GT", "IN", "_MATCHES"})
_OPERATORS = _COMPARISONS | {"STEPS", "PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "AND", "OR", "NOT"}
# How the tokens of the grammar are named in a message.
_WORDS = {
    "NAME": "a name",
    "FIELD": "a field",
    "NUMBER": "a number",
    "STRING": "a string",
    "REGEX": "a `/regex/`",
    "PATH": "a `.json.path`",
    "EQUAL": "`=`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "ARROW": "`->`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "_DOTS": "`..`",
    "OPT": "`?`",
    "_FROM": "`from`",
    "_BY": "`by`",
    "_IN": "`in`",
    "_ELSE": "`else`",
    "_PER": "`per`",
    "_GIVEN": "`given`",
    "_INTO": "`into`",
    "GATHER": "`gather`",
    "_UNTIL": "`until`",
}
# What follows a word or sign.
_AFTER = {
    "as": "what the output is held to",
    "via": "a way to decode",
    "within": "a level",
    "draft": "a model, or a way to draft",
    "like": "a system",
    "given": "a problem",
    "into": "a column",
    "per": "a column",
}
# How the stages of other languages are written that are more here than a stage of another name.
_WRITTEN_HERE = {
    "for": "`repeat N { … }` runs a block N times, `each NAME in LIST { … }` for each element of a list",
    "while": "here that is `repeat N until CONDITION { … }`, which ends where the condition holds",
    "system": 'it is a part of `chat`: `chat system="…" user=problem`',
    "user": "it is a part of `chat`: `chat user=problem`",
}
_CLAUSES = frozenset({"_AS", "_VIA", "_DRAFT", "_INTO", "_WITHIN", "_PREFER", "_LIKE"})


def explain(error: UnexpectedInput, layout: Layout) -> tuple[Diagnostic, int]:
    """The diagnostic for a failed parse, and an offset in the statement that is to blame."""
    failure = failure_of(error, layout)
    diagnostic = (
        _wrong_first_word(failure) or _reserved_word(failure) or known_mistake(failure) or _unexpected_token(failure)
    )
    return diagnostic, failure.offset


def misspelt_words(layout: Layout) -> Iterator[Diagnostic]:
    """The first words that are near to a stage or declaration: all that can be told where braces do not pair."""
    for statement in layout.statements:
        word = statement.tokens[0]
        if word.kind != "word" or word.text in STAGES or word.text in DECLARATIONS or statement.inside == "fields":
            continue
        for kind, code, known in (("stage", "QP110", STAGES), ("declaration", "QP111", DECLARATIONS)):
            if closest(word.text, known):
                yield _unknown_word(word, kind, code, known)
                break


def _wrong_first_word(failure: ParseFailure) -> Diagnostic | None:
    """A statement that begins with the wrong word."""
    token, statement = failure.token, failure.statement
    if token is None or statement is None or token.start != statement.tokens[0].start:
        return None
    if token.text == "else" and statement.inside == "stages":
        help = "write it behind the block: `if COND { … } else { … }`"
        message = "`else` stands behind the block of an `if`, and there is none"
        return Diagnostic("QP109", message, token.span, "else of what?", help=help)
    if "_SEP" in failure.expected and failure.before and failure.before.text == "}":
        if token.text == "until":
            message, help = "the condition stands before the block", "write `repeat N until CONDITION { … }`"
            return Diagnostic("QP109", message, token.span, "too late", help=help)
        if statement.inside == "arms":
            return Diagnostic("QP109", "nothing stands between two arms", token.span, help=f"leave `{token.text}` out")
        sign = "`,`" if failure.in_fields else "`|`"
        return Diagnostic("QP109", f"expected a newline or {sign} before `{token.text}`", token.span)
    if statement.inside == "arms":
        help = "put the stages of each arm into braces"
        return Diagnostic("QP109", f"expected an arm in braces, found `{token.text}`", token.span, help=help)
    if token.kind != "word" or statement.inside == "fields":
        return None
    word, inside = token.text, statement.depth > 0
    if not inside and word in STAGES:
        notes = (f"form: {DECLARATIONS['program']}",)
        return Diagnostic(
            "QP112", f"`{word}` stands outside a program", token.span, "stages belong in one", notes=notes
        )
    if inside and word in DECLARATIONS:
        message = f"`{word}` cannot stand among stages"
        return Diagnostic("QP111", message, token.span, "declarations stand outside programs")
    if inside:
        return _unknown_word(token, "stage", "QP110", STAGES)
    return _unknown_word(token, "declaration", "QP111", DECLARATIONS)


def _unknown_word(token: Token, kind: str, code: str, known: Iterable[str]) -> Diagnostic:
    word = token.text
    synonym = synonyms().get(word) if kind == "stage" else None
    notes: tuple[str, ...] = (f"{kind}s: {', '.join(known)}",)
    fix = did_you_mean(word, known, token.span)
    if synonym:
        help = _WRITTEN_HERE.get(word, f"here that is `{synonym}`")
        notes, fix = (f"form: {STAGES[synonym].usage}",), {"help": help}
    return Diagnostic(code, f"unknown {kind} `{word}`", token.span, f"not a {kind}", notes=notes, **fix)


def _reserved_word(failure: ParseFailure) -> Diagnostic | None:
    """A reserved word as a name."""
    token = failure.token
    if token is None or token.kind != "word" or token.text not in RESERVED:
        return None
    if "NAME" not in failure.expected or (failure.expected & {"NUMBER", "_SEP"} and not _begins_field(failure, token)):
        return None
    message = f"`{token.text}` is a reserved word and names nothing"
    notes = (*failure.usage, f"reserved words: {', '.join(sorted(RESERVED))}")
    after = failure.tokens[len(failure.earlier) + 1 :]
    fix: dict[str, Any] = {}
    if token.text == "by" and failure.word in STAGES and len(failure.earlier) == 1 and after:
        edit = Edit(Span(token.start, after[0].start), "")
        fix = {"help": f"leave `by` out: `{failure.word} {after[0].text}`", "edit": edit}
    return Diagnostic("QP114", message, token.span, "expected a name", notes=notes, **fix)


def _begins_field(failure: ParseFailure, token: Token) -> bool:
    """Whether the token begins a field, which is named by its first word."""
    return failure.in_fields and failure.statement is not None and token.start == failure.statement.tokens[0].start


def _unexpected_token(failure: ParseFailure) -> Diagnostic:
    expected, actual = _expected_phrase(failure), _actual_phrase(failure)
    message = f"expected {expected}, found {actual}" if expected else f"unexpected {actual}"
    label = f"expected {expected}" if expected and failure.token else ""
    return Diagnostic("QP109", message, failure.span, label, notes=failure.usage)


def _actual_phrase(failure: ParseFailure) -> str:
    token = failure.token
    if token is None:
        return "the end of the text" if failure.at_end else "the end of the line"
    return {"string": "a string", "regex": "a regex"}.get(token.kind, f"`{token.text}`")


def _expected_phrase(failure: ParseFailure) -> str:
    """What could follow, named as people know it; empty where too much could."""
    before, expected = failure.before, set(failure.expected)
    if before and failure.statement and before.start == failure.statement.tokens[0].start and failure.word in STAGES:
        return STAGES[failure.word].first
    if before and (before.text == "->" or (before.text == ":" and "NUMBER" not in expected)):
        return "a type"
    if before and before.text == "[" and failure.in_fields:
        return "a type"
    if failure.in_fields and "FIELD" in expected and "COLON" not in expected:
        return "a field" if "RBRACE" not in expected else "a field or `}`"
    if "_SEP" in expected and failure.in_fields:
        return "`?` or the end of the field" if "OPT" in expected else "the end of the field"
    if before and before.text in _AFTER and "NAME" in expected:
        return _AFTER[before.text]
    if failure.word == "program" and before and before.text in ("(", ",") and "NAME" in expected:
        return "a parameter" if "RPAR" not in expected else "a parameter or `)`"
    phrases = []
    if {"NUMBER", "NAME", "LPAR"} <= expected:
        phrases.append("an expression")
        expected -= _EXPRESSION
    if expected & _CLAUSES - {"_INTO"}:
        phrases.append("a clause")
        expected -= _CLAUSES
    if "_SEP" in expected:
        if "NAME" in expected:
            phrases[:0] = ["an option"]
        phrases.append("the end of the stage" if failure.word in STAGES else "the end of the line")
        expected -= {"_SEP", "RBRACE", "NAME", "$END"}
    expected -= _OPERATORS | ({"LPAR", "LSQB"} if "PLUS" in expected else set())
    if len(expected) > 6:
        return ", ".join(phrases) or "a stage"
    phrases[:0] = [_WORDS[name] for name in _WORDS if name in expected]
    return enumerated(phrases)
