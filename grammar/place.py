"""Where a parse failed: the token found there, its statement, and what could have followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from qpdsl.grammar.source import Span
from qpdsl.grammar.statements import Layout, Statement
from qpdsl.grammar.tokens import Token
from qpdsl.grammar.words import CLAUSE_FORMS, DECLARATIONS, FIELD_FORM, STAGES


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
