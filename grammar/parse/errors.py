"""Slips of syntax whose cause is known: habits of other languages, and words left out.

MERGED: Where a parse failed: the token found there, its statement, and what could have followed.

MERGED: Why a text does not parse, in the language's own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.literals import regex
from qpdsl.grammar.parse.layout import Layout, Statement
from qpdsl.grammar.parse.tokens import Token
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import CLAUSE_FORMS, DECLARATIONS, FIELD_FORM, RESERVED, STAGE_SYNONYMS, STAGES


@dataclass(slots=True)
class Place:
    """Where the parse failed: the token found (None at the end of a line or text), its statement, what could follow."""

    offset: int
    found: Token | None
    before: Token | None
    statement: Statement | None
    expected: frozenset[str]
    at_end: bool

    @property
    def in_fields(self) -> bool:
        return self.statement is not None and self.statement.inside == "fields"

    @property
    def word(self) -> str:
        """The stage or declaration that the statement is."""
        word = self.statement.tokens[0].text if self.statement and not self.in_fields else ""
        return word if word in STAGES or word in DECLARATIONS else ""

    @property
    def span(self) -> Span:
        """What to mark: the token, or the spot behind the last one where something is missing."""
        if self.found:
            return self.found.span
        end = self.before.end if self.before else self.offset
        return Span(end, end)

    @property
    def usage(self) -> tuple[str, ...]:
        form = STAGES[self.word].usage if self.word in STAGES else DECLARATIONS.get(self.word)
        if self.in_fields:
            form = FIELD_FORM
        elif self.before and self.before.text in CLAUSE_FORMS:
            form = CLAUSE_FORMS[self.before.text]
        return (f"form: {form}",) if form else ()


def place_of(error: UnexpectedInput, layout: Layout) -> Place:
    at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    offset = len(layout.text) if at_end else error.pos_in_stream or 0
    expected: Any = error.allowed if isinstance(error, UnexpectedCharacters) else error.accepts  # type: ignore[attr-defined]
    found = None if at_end else layout.token_at(offset)
    if found and found.kind == "newline":
        found = None
    before = next((t for t in reversed(layout.tokens) if t.end <= offset and t.kind != "newline"), None)
    statement = layout.statement_at(offset)
    return Place(offset, found, before, statement, frozenset(expected or ()), at_end)


_COMPARISON_SIGNS = frozenset({"==", "!=", "<", "<=", ">", ">="})
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
    if (
        token.text in _COMPARISON_SIGNS
        and ends
        and any(one.text in _COMPARISON_SIGNS for one in statement.tokens[:index])
    ):
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


_EXPRESSION = frozenset({"NUMBER", "STRING", "NAME", "LPAR", "MINUS", "NOT", "TRUE", "FALSE", "NONE"})
_COMPARISONS = frozenset({"EQ", "NE", "LE", "GE", "LT", "GT", "_MATCHES"})
_OPERATORS = _COMPARISONS | {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "AND", "OR", "NOT"}
_WORDS = {
    "NAME": "a name",
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
    "_PER": "`per`",
    "_INTO": "`into`",
    "_UNTIL": "`until`",
}
_AFTER = {
    "as": "what the output is held to",
    "via": "a way to decode",
    "within": "a level",
    "draft": "a model",
    "like": "a system",
    "into": "a column",
    "per": "a column",
}
_CLAUSES = frozenset({"_AS", "_VIA", "_DRAFT", "_INTO", "_WITHIN", "_PREFER", "_LIKE"})


def explain(error: UnexpectedInput, layout: Layout, source: Source) -> tuple[Diagnostic, int]:
    """The diagnostic for a failed parse, and an offset in the statement that is to blame."""
    place = place_of(error, layout)
    diagnostic = _head(place) or _reserved(place) or slip(place) or _expected(place)
    return diagnostic, place.offset


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


def _head(place: Place) -> Diagnostic | None:
    """A statement that begins with the wrong word."""
    token, statement = place.found, place.statement
    if token is None or statement is None or token.start != statement.tokens[0].start:
        return None
    if "_SEP" in place.expected and place.before and place.before.text == "}":
        if statement.inside == "arms":
            return Diagnostic("QP109", "nothing stands between two arms", token.span, help=f"leave `{token.text}` out")
        sign = "`,`" if place.in_fields else "`|`"
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
    near, synonym = closest(word, known), STAGE_SYNONYMS.get(word) if kind == "stage" else None
    notes: tuple[str, ...] = (f"{kind}s: {', '.join(known)}",)
    help, edit = (f"did you mean `{near}`?", Edit(token.span, near)) if near else (None, None)
    if synonym:
        notes, help, edit = (f"form: {STAGES[synonym].usage}",), f"here that is `{synonym}`", None
    return Diagnostic(code, f"unknown {kind} `{word}`", token.span, f"not a {kind}", notes=notes, help=help, edit=edit)


def _reserved(place: Place) -> Diagnostic | None:
    """A reserved word as a name."""
    token = place.found
    if token is None or token.kind != "word" or token.text not in RESERVED:
        return None
    if "NAME" not in place.expected or (place.expected & {"NUMBER", "_SEP"} and not _starts(place, token)):
        return None
    message = f"`{token.text}` is a reserved word and names nothing"
    reserved = ", ".join(sorted(RESERVED))
    return Diagnostic("QP114", message, token.span, "expected a name", notes=(f"reserved words: {reserved}",))


def _starts(place: Place, token: Token) -> bool:
    """Whether the token begins a field, which is named by its first word."""
    return place.in_fields and place.statement is not None and token.start == place.statement.tokens[0].start


def _expected(place: Place) -> Diagnostic:
    wanted = _wanted(place)
    found = _found(place)
    message = f"expected {wanted}, found {found}" if wanted else f"unexpected {found}"
    label = f"expected {wanted}" if wanted and place.found else ""
    return Diagnostic("QP109", message, place.span, label, notes=place.usage)


def _found(place: Place) -> str:
    token = place.found
    if token is None:
        return "the end of the text" if place.at_end else "the end of the line"
    return {"string": "a string", "regex": "a regex"}.get(token.kind, f"`{token.text}`")


def _wanted(place: Place) -> str:
    before, expected = place.before, set(place.expected)
    if before and place.statement and before.start == place.statement.tokens[0].start and place.word in STAGES:
        return STAGES[place.word].first
    if before and before.text in (":", "->"):
        return "a type"
    if before and before.text == "[" and place.in_fields:
        return "a type"
    if place.in_fields and "NAME" in expected and "COLON" not in expected:
        return "a field" if "RBRACE" not in expected else "a field or `}`"
    if "_SEP" in expected and place.in_fields:
        return "`?` or the end of the field" if "OPT" in expected else "the end of the field"
    if before and before.text in _AFTER and "NAME" in expected:
        return _AFTER[before.text]
    if place.word == "program" and before and before.text in ("(", ",") and "NAME" in expected:
        return "a parameter" if "RPAR" not in expected else "a parameter or `)`"
    wanted = []
    if {"NUMBER", "NAME", "LPAR"} <= expected:
        wanted.append("an expression")
        expected -= _EXPRESSION
    if expected & _CLAUSES - {"_INTO"}:
        wanted.append("a clause")
        expected -= _CLAUSES
    if "_SEP" in expected:
        if "NAME" in expected:
            wanted[:0] = ["an option"]
        wanted.append("the end of the stage" if place.word in STAGES else "the end of the line")
        expected -= {"_SEP", "RBRACE", "NAME", "$END"}
    expected -= _OPERATORS | ({"LPAR"} if "PLUS" in expected else set())
    if len(expected) > 6:
        return ", ".join(wanted) or "a stage"
    wanted[:0] = [_WORDS[name] for name in _WORDS if name in expected]
    return _either(wanted) if wanted else ""


def _either(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"
