"""Pieces of an HTML page. Texts are escaped here, and nowhere else."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from qpdsl.grammar.printable import printable


def text(value: str) -> str:
    """A text as it may stand in a page."""
    return html.escape(printable(value))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), tall: bool = False
) -> str:
    """A table of texts; the columns `numbers` stand at the right. A tall one scrolls."""

    def cells(row: Sequence[str], tag: str) -> str:
        marks = (' class="number"' if number in numbers else "" for number in range(len(row)))
        return "".join(f"<{tag}{mark}>{text(cell)}</{tag}>" for cell, mark in zip(row, marks, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>\n" for row in rows)
    scroll = "scroll tall" if tall else "scroll"
    return f'<div class="{scroll}"><table>\n<tr>{cells(head, "th")}</tr>\n{body}</table></div>'


def section(title: str, *parts: str, hint: str = "") -> str:
    """A box of the page under a title, with words about it."""
    said = f'<p class="hint">{text(hint)}</p>' if hint else ""
    return f"<section><h2>{text(title)}</h2>{said}{''.join(parts)}</section>"


def folded(title: str, *parts: str) -> str:
    """Parts that are shown when their title is clicked."""
    return f"<details><summary>{text(title)}</summary>{''.join(parts)}</details>"


def code(value: str) -> str:
    """Lines of a program, or of a difference."""
    return f'<pre class="mono scroll">{text(value)}</pre>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with values, side by side."""
    return "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs)


def paragraphs(lines: Iterable[str]) -> str:
    """A paragraph a line."""
    return "".join(f"<p>{text(line)}</p>" for line in lines)
