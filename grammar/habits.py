"""Slips of syntax whose cause is known: habits of other languages, and words left out."""

from __future__ import annotations

from qpdsl.grammar import regex
from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.place import Place
from qpdsl.grammar.source import Span
from qpdsl.grammar.tokens import Token
from qpdsl.grammar.words import STAGES

_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
# What begins a comment elsewhere.
_COMMENTS = ("//", "/*", "--")


def slip(place: Place) -> Diagnostic | None:
    """Slips whose cause is known."""
    token, statement = place.found, place.statement
    if token is None or statement is None:
        return None
    index = next((i for i, t in enumerate(statement.tokens) if t.start == token.start), 0)
    word = place.word
    if token.text == "=" and word in ("generate", "score") and index == 2:
        first = statement.tokens[1]
        what = STAGES[word].first
        return Diagnostic("QP109", f"expected {what} before the options", first.span, what, notes=place.usage)
    if token.text == "=" and "EQ" in place.expected:
        return _equals(place, token, statement.tokens[:index])
    if token.text == "==" and place.offset == token.start + 1:  # an `=` was wanted, and taken
        fix = Edit(token.span, "=")
        return Diagnostic("QP109", "`==` compares and sets no option", token.span, help="write `=`", edit=fix)
    if place.before and place.before.text in STAGES and place.expected == {"EQUAL"} and word in STAGES:
        start = Span(place.before.start, place.before.start)
        message = f"expected a newline or `|` before the stage `{place.before.text}`"
        fix = Edit(start, "| ")
        return Diagnostic("QP109", message, place.before.span, help="begin a new stage", edit=fix)
    ends = not place.expected.isdisjoint({"_SEP", "RPAR"})
    if token.text in _COMPARISONS and ends and any(one.text in _COMPARISONS for one in statement.tokens[:index]):
        help = "join two comparisons with `and`"
        return Diagnostic("QP109", "comparisons do not chain", token.span, notes=place.usage, help=help)
    if index == 0 and "".join(one.text for one in statement.tokens[:2]).startswith(_COMMENTS):
        return Diagnostic("QP109", "nothing begins like this here", token.span, help="a comment begins with `#`")
    if token.kind == "string" and "REGEX" in place.expected:
        message, bare = "expected a `/regex/`, found a string", token.text.strip('"')
        sound = not {"/", "\n"} & set(bare) and regex.check(bare, 0) is None
        edit = Edit(token.span, f"/{bare}/") if sound else None
        help = "a regex stands between slashes"
        return Diagnostic("QP109", message, token.span, notes=place.usage, help=help, edit=edit)
    if token.text == "," and word in STAGES and word != "return" and "_SEP" in place.expected:
        fix = Edit(token.span, "")
        return Diagnostic("QP109", "options are parted by spaces", token.span, help="leave the comma out", edit=fix)
    if word == "prompt" and index == 1 and token.kind == "word":
        fix = Edit(token.span, f'"{{{token.text}}}"')
        message = f"expected a string, found `{token.text}`"
        return Diagnostic("QP109", message, token.span, help="put the name into a string", edit=fix)
    if token.text == "?" and word == "program":
        help = "give the parameter a default, as in `: int = 4`"
        return Diagnostic("QP109", "only the fields of a schema may be absent", token.span, help=help)
    if token.text in ("[", "{") and word == "program" and place.before and place.before.text in (":", "->"):
        message = f"expected the name of a type, found `{token.text}`"
        help = "declare a `schema` with it, and name that"
        return Diagnostic("QP109", message, token.span, notes=place.usage, help=help)
    if token.kind == "regex" and "NUMBER" in place.expected:
        how = "a column from a regex is made by `extract NAME = /…/`" if word != "extract" else None
        return Diagnostic("QP109", "expected an expression, found a regex", token.span, notes=place.usage, help=how)
    return None


def _equals(place: Place, token: Token, before: list[Token]) -> Diagnostic:
    """A `=` behind a whole expression: the value of the option before is missing, or a comparison is meant."""
    if len(before) > 2 and before[-2].text == "=":
        option, end = before[-3].text, before[-2].end
        return Diagnostic(
            "QP109", f"option `{option}` has no value", Span(end, end), "expected an expression", notes=place.usage
        )
    texts = [one.text for one in before]
    compares = not {"until", "by", "return"}.isdisjoint(texts) or texts.count("(") > texts.count(")")
    fix = {"help": "write `==`", "edit": Edit(token.span, "==")} if compares and place.word in STAGES else {}
    return Diagnostic("QP109", "`=` sets an option and compares nothing", token.span, notes=place.usage, **fix)  # type: ignore[arg-type]
