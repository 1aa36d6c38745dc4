"""Positions in a text as the protocol counts them: lines from 0, columns in UTF-16 code units."""

from __future__ import annotations

from lsprotocol import types as lsp

from qpdsl.grammar.source import Source, Span


def position(source: Source, offset: int) -> lsp.Position:
    line, column = source.position(offset)
    before = source.text[offset - column + 1 : offset]
    return lsp.Position(line - 1, len(before.encode("utf-16-le", "surrogatepass")) // 2)


def range_of(source: Source, span: Span) -> lsp.Range:
    return lsp.Range(position(source, span.start), position(source, span.end))


def whole(source: Source) -> lsp.Range:
    return range_of(source, Span(0, len(source.text)))


def offset_at(source: Source, cursor: lsp.Position) -> int:
    """The offset of a position; one past the end of its line, or of the text, counts as the end."""
    lines = source.text.split("\n")
    if cursor.line >= len(lines):
        return len(source.text)
    start = sum(len(line) + 1 for line in lines[: cursor.line])
    units = 0
    for index, char in enumerate(lines[cursor.line]):
        if units >= cursor.character:
            return start + index
        units += 2 if ord(char) > 0xFFFF else 1
    return start + len(lines[cursor.line])
