"""A table's columns: how wide each is in the space there is, and which are left out where there is too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from qpdsl.grammar.width import cells, shorten


@dataclass(frozen=True, slots=True)
class Column:
    """`width` 0 takes what is left, at least `least`. Where space is short those with the lowest `weight` go first."""

    name: str
    title: str
    width: int
    right: bool = True
    weight: int = 10
    least: int = 16


def fitted(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that have room, with their widths; a cell parts two."""
    kept = list(columns)
    while len(kept) > 1 and sum(column.width or column.least for column in kept) + len(kept) - 1 > width:
        kept.remove(min(kept, key=lambda column: column.weight))
    left = width - sum(column.width for column in kept) - (len(kept) - 1)
    open_ = sum(column.width == 0 for column in kept)
    found = []
    for column in kept:
        if column.width:
            found.append((column, column.width))
        else:
            share = left // open_
            found.append((column, max(share, 1)))
            left, open_ = left - share, open_ - 1
    return found


def row(layout: Sequence[tuple[Column, int]], values: Mapping[str, Text | str], style: str = "") -> Text:
    """One line of a table."""
    line = Text(end="", no_wrap=True, style=style)
    for index, (column, width) in enumerate(layout):
        if index:
            line.append(" ")
        line.append_text(cell(values.get(column.name, ""), width, right=column.right))
    return line


def cell(value: Text | str, width: int, *, right: bool = False) -> Text:
    """A value cut or padded to so many cells."""
    text = value.copy() if isinstance(value, Text) else Text(value)
    text.end = ""
    size = cells(text.plain)
    if size > width:
        if len(text.spans) == 0:
            return Text(shorten(text.plain, width).ljust(width), style=text.style, end="")
        text.truncate(width, overflow="ellipsis")
        return text
    space = " " * (width - size)
    return Text(space, end="").append_text(text) if right else text.append(space)


def one_line(text: str) -> str:
    """Text of a model or a user on one line, harmless to a terminal."""
    shown = text.strip().replace("\n", "⏎")
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in shown
    )


def harmless(text: str) -> str:
    """Text of a model or a user with its lines, harmless to a terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else " " if char == "\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
