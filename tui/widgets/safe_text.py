"""The last look at what is drawn: no character that a terminal would obey reaches a cell.

Texts from outside are made printable where a screen takes them up. This catches what was forgotten there, and what
comes from elsewhere, such as a text that was pasted into a field.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from qpdsl.grammar.printable import is_printable

_INSTEAD = "\N{REPLACEMENT CHARACTER}"


class PrintableOnly(LineFilter):
    """Puts a sign in the place of each such character, as many as it has cells, so that a line keeps its width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [segment if segment.control else Segment(_masked(segment.text), segment.style) for segment in segments]


def _masked(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if is_printable(char, text[at - 1] if at else "") else _INSTEAD * cell_len(char)
        for at, char in enumerate(text)
    )
