"""Where a parse failed: the token found there, its statement, and what could have stood in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.parse.layout import Layout, Statement
from qpdsl.grammar.parse.tokens import Token
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import CLAUSE_FORMS, DECLARATIONS, FIELD_FORM


@dataclass(slots=True)
class ParseFailure:
    """`token` is the one that does not fit, None at the end of a line or text; `before` stands before it.

    `expected` holds the grammar's names of the tokens that would fit. `at_end` says that the text ends here.
    """

    offset: int
    token: Token | None
    before: Token | None
    statement: Statement | None
    expected: frozenset[str]
    at_end: bool

    @property
    def in_fields(self) -> bool:
        return self.statement is not None and self.statement.inside == "fields"

    @property
    def word(self) -> str:
        """The stage or declaration that the statement is; empty where it is none."""
        word = self.statement.tokens[0].text if self.statement and not self.in_fields else ""
        word = "if" if word == "else" else word
        return word if word in STAGES or word in DECLARATIONS else ""

    @property
    def tokens(self) -> list[Token]:
        """The tokens of the statement."""
        return self.statement.tokens if self.statement else []

    @property
    def earlier(self) -> list[Token]:
        """The tokens of the statement before the one that does not fit; empty where that is not among them."""
        for index, token in enumerate(self.tokens):
            if self.token and token.start == self.token.start:
                return self.tokens[:index]
        return []

    @property
    def span(self) -> Span:
        """What to mark: the token, or the spot behind the last one where something is missing."""
        if self.token:
            return self.token.span
        end = self.before.end if self.before else self.offset
        return Span(end, end)

    @property
    def usage(self) -> tuple[str, ...]:
        """A note with the form of the clause, field, stage or declaration."""
        form = STAGES[self.word].usage if self.word in STAGES else DECLARATIONS.get(self.word)
        if self.in_fields:
            form = FIELD_FORM
        elif self.before and self.before.text in CLAUSE_FORMS:
            form = CLAUSE_FORMS[self.before.text]
        return (f"form: {form}",) if form else ()


def failure_of(error: UnexpectedInput, layout: Layout) -> ParseFailure:
    """The failure that a lark error is."""
    at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    offset = len(layout.text) if at_end else error.pos_in_stream or 0
    expected: Any = error.allowed if isinstance(error, UnexpectedCharacters) else error.accepts  # type: ignore[attr-defined]
    token = None if at_end else layout.token_at(offset)
    if token and token.kind == "newline":
        token = None
    before = next((t for t in reversed(layout.tokens) if t.end <= offset and t.kind != "newline"), None)
    statement = layout.statement_at(offset)
    return ParseFailure(offset, token, before, statement, frozenset(expected or ()), at_end)
