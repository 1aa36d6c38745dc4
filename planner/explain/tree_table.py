"""Lines of a tree with columns beside them, in the width that there is.

Nothing is cut: where the columns do not fit beside each other, they go below their line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from qpdsl.grammar.printable import cells, printable

GAP = "   "
_STROKES = re.compile(r"[ │├└]*")
# A tree that is deeper than the screen is wide still has this much room.
_MIN_ROOM = 16


def laid_out(
    lines: Sequence[Sequence[str]], *, width: int | None = None, right: Collection[int] = ()
) -> list[list[str]]:
    """The lines that each entry takes: its first cell with its strokes, and the others in columns.

    A column that is empty everywhere takes no room. With `width`, a number of terminal cells, the last column goes
    below its line where it does not fit beside it, and if that does not do, all of them do. Those in `right` end under
    each other.
    """
    count = max(map(len, lines), default=0)
    table = [[_shown(cell) for cell in [*line, *[""] * (count - len(line))]] for line in lines]
    for beside in dict.fromkeys((count, max(count - 1, 1), 1)):
        rows = aligned([line[:beside] for line in table], right)
        if width is None or beside == 1 or max(map(cells, rows), default=0) <= width:
            break
    shown = []
    for at, (line, row) in enumerate(zip(table, rows, strict=True)):
        following = table[at + 1][0] if at + 1 < len(table) else ""
        shown.append(_entry(row, line[0], [cell for cell in line[beside:] if cell], following, width))
    return shown


def folded(text: str, width: int | None, first: str = "", rest: str = "  ") -> Iterator[str]:
    """A text as lines of at most `width` cells; `first` leads the first of them, `rest` those after it."""
    if width is None or cells(first) + cells(text) <= width:
        yield f"{first}{text}".rstrip()
        return
    lead, line = first, ""
    for word in _words(text, max(width - max(cells(first), cells(rest)), _MIN_ROOM)):
        room = max(width - cells(lead), _MIN_ROOM)
        if line and cells(line) + 1 + cells(word) > room:
            yield f"{lead}{line}".rstrip()
            lead, line = rest, word
        else:
            line = f"{line} {word}" if line else word
    yield f"{lead}{line}".rstrip()


def aligned(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """The lines of a table; a column that is empty takes no room, and those in `right` end under each other."""
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    rows = []
    for line in table:
        parts = [
            " " * (width - cells(cell)) + cell if at in right else cell + " " * (width - cells(cell))
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            if width
        ]
        rows.append(GAP.join(parts).rstrip())
    return rows


def _shown(cell: str) -> str:
    return printable(cell, tabs=False).replace("\n", "⏎")


def _entry(row: str, text: str, below: Sequence[str], following: str, width: int | None) -> list[str]:
    """A line of the table and the cells below it. The strokes of the tree go on beside these."""
    strokes = _STROKES.match(text)
    assert strokes is not None
    at = strokes.end()
    under = strokes[0].replace("├", "│").replace("└", " ")
    under += "│ " if following[at : at + 1] in ("│", "├", "└") and following[:at].strip(" │") == "" else "  "
    side = GAP.join([row, *below])
    if width is None or cells(side) <= width:
        return [side]
    lines = list(folded(row[at:], width, row[:at], f"{under}  "))
    return [*lines, *(line for packed in _packed(below, width, under) for line in folded(packed, width, under, under))]


def _packed(parts: Sequence[str], width: int, lead: str) -> Iterator[str]:
    """The cells, as many side by side as there is room for."""
    line = ""
    for part in parts:
        joined = f"{line}{GAP}{part}" if line else part
        if line and cells(lead) + cells(joined) > width:
            yield line
            line = part
        else:
            line = joined
    if line:
        yield line


def _words(text: str, room: int) -> Iterator[str]:
    """The words, and those that have no room in pieces."""
    for word in text.split(" "):
        piece = ""
        for char in word:
            if cells(piece) + cells(char) > room:
                yield piece
                piece = ""
            piece += char
        yield piece
