"""The layout of a text: where each stage, field and declaration begins and ends, and how one is blanked."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal as OneOf

from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.parse.tokens import Token
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import DECLARATIONS

# What stands between two braces: stages, the fields of a schema, or the arms of a `branch`; `file` is outside all.
Inside = OneOf["file", "stages", "fields", "arms"]
_VISIBLE = re.compile(r"[^\n]")


@dataclass(slots=True)
class Statement:
    """A run of tokens without a separator or brace: a stage, a field, a declaration, or the head of a block.

    Braces within brackets, as in `[{ name: text }]`, do not end one. `depth` counts the blocks around it, `inside` says
    what the innermost of them holds.
    """

    tokens: list[Token]
    depth: int
    inside: Inside

    @property
    def span(self) -> Span:
        return Span(self.tokens[0].start, self.tokens[-1].end)


@dataclass(slots=True)
class Layout:
    """`tokens` are those of `scanned` that are no comments; in `text` only the newlines are left that end something.

    `broken` says that braces do not pair, so that nothing about the structure can be trusted.
    """

    text: str
    scanned: list[Token]
    tokens: list[Token]
    statements: list[Statement] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)
    broken: bool = False

    def statement_at(self, offset: int) -> Statement | None:
        """The statement that holds the offset, else the last one before it."""
        starts = [statement.tokens[0].start for statement in self.statements]
        index = bisect_right(starts, offset) - 1
        return self.statements[index] if index >= 0 else None

    def token_at(self, offset: int) -> Token | None:
        """The token that holds the offset, None where there is none."""
        starts = [token.start for token in self.tokens]
        index = bisect_right(starts, offset) - 1
        token = self.tokens[index] if index >= 0 else None
        return token if token and token.end > offset else None

    def block_after(self, statement: Statement) -> Span | None:
        """The block that the statement is the head of, if it is one."""
        braces = list(self._braces(statement))
        return Span(braces[0][0].start, braces[-1][0].end) if braces and braces[-1][1] == 0 else None

    def braces_after(self, statement: Statement) -> set[int]:
        """The offsets where the block behind a head begins, and the arms in it if the head is a `branch`."""
        deepest = 2 if statement.tokens[0].text == "branch" else 1
        return {token.start for token, depth in self._braces(statement) if token.text == "{" and depth <= deepest}

    def elses_after(self, statement: Statement) -> Iterator[Statement]:
        """The heads of the `else` blocks behind that of a faulty `if`, which mean nothing without it."""
        head: Statement | None = statement
        while head is not None and (block := self.block_after(head)) is not None:
            after = next((token for token in self.tokens if token.start >= block.end and token.kind != "newline"), None)
            head = self.statement_at(after.start) if after is not None and after.text == "else" else None
            if head is not None:
                yield head

    def without(self, statement: Statement) -> str:
        """The text with a statement blanked, and one `|` beside it, so that no empty stage is left.

        The block behind a faulty head stays, to find the errors in it, but for one that holds no stages. Of a faulty
        `branch` the word stays too, as its arms mean nothing without it.
        """
        first, *rest = statement.tokens
        if first.text == "branch" and statement.inside == "stages" and rest and self.block_after(statement):
            return blank(self.text, [Span(rest[0].start, rest[-1].end)])
        spans = [statement.span]
        block = self.block_after(statement)
        holds_stages = first.text in DECLARATIONS and first.text != "schema"
        if block and (statement.inside == "fields" or (statement.inside == "file" and not holds_stages)):
            spans.append(block)
        index = self.tokens.index(first)
        if first.text == "else":
            # The blocks before and behind it are to be two stages.
            text = blank(self.text, spans)
            return f"{text[: first.start]}|{text[first.start + 1 :]}"
        after = self.tokens.index(statement.tokens[-1], index) + 1
        beside = [next((t for t in self.tokens[after:] if t.kind != "newline"), None)]
        beside.append(next((t for t in reversed(self.tokens[:index]) if t.kind != "newline"), None))
        spans += [token.span for token in beside if token and token.text == "|"][:1]
        return blank(self.text, spans)

    def _braces(self, statement: Statement) -> Iterable[tuple[Token, int]]:
        """The braces of the block behind a statement, each with how deep it opens; 0 for the one that ends it."""
        index = self.tokens.index(statement.tokens[-1]) + 1
        if statement.tokens[0].text == "repeat":  # a common mistake: `repeat 3 | { … }`
            while index < len(self.tokens) and self.tokens[index].text.strip() in ("", "|"):
                index += 1
        if index == len(self.tokens) or self.tokens[index].text != "{":
            return
        depth = 0
        for token in self.tokens[index:]:
            if token.text in ("{", "}"):
                depth += 1 if token.text == "{" else -1
                yield token, depth
            if depth == 0:
                return


def blank(text: str, spans: Iterable[Span], *, newlines: bool = True) -> str:
    """The text with spaces in place of the spans, as long as before; `newlines` says that newlines in them stay."""
    pieces, end = [], 0
    for span in sorted(spans, key=lambda span: span.start):
        pieces += [text[end : span.start], _VISIBLE.sub(" ", text[span.start : span.end])]
        if not newlines:
            pieces[-1] = pieces[-1].replace("\n", " ")
        end = span.end
    return "".join([*pieces, text[end:]])
