"""A terminal that knows moves, colours and texts, and no more."""

from __future__ import annotations

import re

from rich.cells import cell_len

_PARTS = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[([\d;]*)m|\n|([^\x1b\n])")


class BareTerminal:
    """`cells` are characters with their colours, by line and column."""

    def __init__(self, width: int, height: int) -> None:
        self.cells = {(y, x): (" ", "") for y in range(height) for x in range(width)}
        self._at = (0, 0)
        self._colours = ""

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            match = _PARTS.match(text, at)
            assert match is not None, f"unknown: {text[at : at + 20]!r}"
            at = match.end()
            line, column, colours, char = match.groups()
            if line is not None:
                self._at = int(line) - 1, int(column) - 1
            elif colours is not None:
                self._colours = "" if colours == "0" else colours.removeprefix("0;")
            elif char is not None:
                self._put(char)

    def _put(self, char: str) -> None:
        y, x = self._at
        width = cell_len(char)
        # Half of a wide character that is drawn over is gone.
        for part in range(x, x + max(width, 1)):
            if width and self.cells.get((y, part), ("", ""))[0] == "":
                self.cells[y, part - 1] = (" ", "")
        if width == 0:
            before = x - 1 if self.cells.get((y, x - 1), (" ", ""))[0] else x - 2
            text, colours = self.cells[y, before]
            self.cells[y, before] = (text + char, colours)
            return
        if width == 1 and self.cells.get((y, x + 1), (" ", ""))[0] == "":
            self.cells[y, x + 1] = (" ", "")
        self.cells[y, x] = (char, self._colours)
        if width == 2:
            if self.cells.get((y, x + 2), (" ", ""))[0] == "":
                self.cells[y, x + 2] = (" ", "")
            self.cells[y, x + 1] = ("", self._colours)
        self._at = (y, x + width)
