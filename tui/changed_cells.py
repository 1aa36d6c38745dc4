"""What a terminal shows, cell by cell, so that only cells that change are written to it.

A widget that is drawn again gives all its lines, and most of their cells are what is there already. A connection over
ssh would carry each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len
from textual.driver import Driver

# One cell, or a text whose cells cannot be told apart (wide characters, marks that join): its text and colours stand in
# the first of its cells and `_INSIDE` in the others. None is a cell of which nothing is known.
Cell = tuple[str, str]
_INSIDE: Cell = ("", "")
# How all begins that Textual draws, and what it writes around a drawing so that it is shown at once.
_DRAWING, _AT_ONCE = re.compile(r"\x1b\[\d+;\d+H"), "\x1b[?2026"
_PARTS = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[([\d;]*)m|(\n)|([^\x1b\n]+)|(\x1b)")
# Unchanged cells between two changed ones that take fewer bytes than moving over them.
_GAP = 6
# Every character of these takes one cell: ASCII, Latin, and the signs, lines and blocks that the screens are made of.
_NARROW = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2190-\u21ff\u2500-\u259f]*")


class ChangedCells:
    """`written` counts the bytes that were left to write, which whoever reads it may set to 0."""

    def __init__(self) -> None:
        self.written = 0
        self._lines: dict[int, list[Cell | None]] = {}
        # What was drawn last on each line, and where: the same again is left out without a look at its cells.
        self._latest: dict[int, tuple[int, str]] = {}
        self._cursor = ""

    def forget(self) -> None:
        """Nothing is known of the terminal any more, such as after another size."""
        self._lines.clear()
        self._latest.clear()
        self._cursor = ""

    def passed(self, data: str) -> str:
        """What is to be written of `data`, which Textual writes: all of what draws nothing."""
        if _DRAWING.match(data):
            data = self.changed(data)
        elif not data.startswith(_AT_ONCE):
            # Another screen may be there now.
            self.forget()
        self.written += len(data.encode(errors="replace"))
        return data

    def changed(self, drawn: str) -> str:
        """The part of what is drawn that is not there yet. `drawn` has moves, colours and texts, as of Textual."""
        out: list[str] = []
        drawn, cursor = _parted(drawn)
        for x, y, body in _chunks(drawn):
            if self._latest.get(y) == (x, body):
                continue
            cells = _cells(body)
            if cells is None:
                # A sequence that is not known here may do anything.
                self.forget()
                out = [drawn]
                break
            self._latest[y] = (x, body)
            out += self._differing(x, y, cells)
        if cursor and (out or cursor != self._cursor):
            out.append(cursor)
            self._cursor = cursor
        return "".join(out)

    def _differing(self, x: int, y: int, cells: list[Cell]) -> Iterator[str]:
        line = self._lines.setdefault(y, [])
        line += [None] * (x + len(cells) - len(line))
        before = line[x : x + len(cells)]
        self._part(line, x)
        self._part(line, x + len(cells))
        line[x : x + len(cells)] = cells
        for first, end in _runs(before, cells):
            yield f"\x1b[{y + 1};{x + first + 1}H"
            colours = ""
            for text, own in cells[first:end]:
                if text and own != colours:
                    yield f"\x1b[0;{own}m" if own else "\x1b[0m"
                    colours = own
                yield text
            if colours:
                yield "\x1b[0m"

    def _part(self, line: list[Cell | None], at: int) -> None:
        """Forgets a text of several cells that would be drawn over in its middle."""
        if at >= len(line) or line[at] is not _INSIDE:
            return
        first, end = at, at
        while first > 0 and line[first] is _INSIDE:
            first -= 1
        while end < len(line) and line[end] is _INSIDE:
            end += 1
        line[first:end] = [None] * (end - first)


def changing(driver: type[Driver], cells: ChangedCells) -> type[Driver]:
    """A driver that writes to its terminal what `cells` leave of it."""

    class Changing(driver):  # type: ignore[misc, valid-type]
        def write(self, data: str) -> None:
            if passed := cells.passed(data):
                super().write(passed)

    return Changing


def _parted(drawn: str) -> tuple[str, str]:
    """What is drawn, and where the cursor goes at last, empty where it stays."""
    last = drawn.rfind("\x1b[")
    return (drawn[:last], drawn[last:]) if last > 0 and _DRAWING.fullmatch(drawn, last) else (drawn, "")


def _chunks(drawn: str) -> Iterator[tuple[int, int, str]]:
    """Column and line, from 0, and what is drawn from there on."""
    first, *moves = re.split(r"\x1b\[(\d+);(\d+)H", drawn)
    if first.strip("\n"):
        yield 0, 0, f"\x1b{first}"
    for at in range(0, len(moves), 3):
        body = moves[at + 2].removesuffix("\n")
        if body:
            yield int(moves[at + 1]) - 1, int(moves[at]) - 1, body


def _cells(body: str) -> list[Cell] | None:
    """The cells of a piece of one line; None where it has another sequence than colours."""
    cells: list[Cell] = []
    colours = ""
    for match in _PARTS.finditer(body):
        _, _, colour, newline, text, escape = match.groups()
        if colour is not None:
            colours = "" if colour in ("", "0") else colour
        elif newline or escape:
            return None
        elif _NARROW.fullmatch(text):
            cells += [(char, colours) for char in text]
        else:
            cells.append((text, colours))
            cells += [_INSIDE] * (cell_len(text) - 1)
    return cells


def _runs(before: list[Cell | None], cells: list[Cell]) -> Iterator[tuple[int, int]]:
    """Where cells differ, as ranges. Those that nearly touch are one, and none begins or ends inside a text."""
    first = end = -1
    for at, (old, new) in enumerate(zip(before, cells, strict=True)):
        if old == new:
            continue
        if first >= 0 and at - end > _GAP:
            yield _whole(cells, first, end)
            first = -1
        if first < 0:
            first = at
        end = at + 1
    if first >= 0:
        yield _whole(cells, first, end)


def _whole(cells: list[Cell], first: int, end: int) -> tuple[int, int]:
    while first > 0 and cells[first] is _INSIDE:
        first -= 1
    while end < len(cells) and cells[end] is _INSIDE:
        end += 1
    return first, end
