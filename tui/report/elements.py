"""What pages are made of: escaped texts, tables, boxes, and the frame around them.

Nothing that a model wrote is markup in a page, and no page loads anything from elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from qpdsl.grammar.printable import printable


class Markup(str):
    """HTML that stands in a page as it is."""


def text(value: str) -> str:
    """A text as it may stand in a page."""
    return value if isinstance(value, Markup) else html.escape(printable(value))


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    wide: Sequence[int] = (),
    code: Sequence[int] = (),
    tall: bool = False,
    small: bool = False,
) -> str:
    """A table of texts; the columns `numbers` stand at the right, `wide` ones get room for sentences, `code` its font.

    The caption is read out. A tall table scrolls. On screens that are too narrow for a table, unless it is a small one,
    each cell stands beside the title of its column.
    """
    kinds = {**dict.fromkeys(numbers, "number"), **dict.fromkeys(wide, "wide"), **dict.fromkeys(code, "code")}
    marks = [f' class="{kinds[at]}"' if at in kinds else "" for at in range(len(head))]
    titles = [f'<th scope="col"{mark}>{text(title)}</th>' for title, mark in zip(head, marks, strict=True)]

    def cells(row: Sequence[str]) -> str:
        return "".join(
            f'<td{mark} data-title="{text(title)}">{text(cell)}</td>' if cell else f"<td{mark}></td>"
            for title, cell, mark in zip(head, row, marks, strict=True)
        )

    body = "".join(f"<tr>{cells(row)}</tr>\n" for row in rows)
    scroll = "scroll" + " tall" * tall + " small" * small
    # What scrolls is reached by the keyboard.
    box = f'<div class="{scroll}" tabindex="0" role="region" aria-label="{text(caption)}">'
    shown = f'<caption class="read">{text(caption)}</caption>\n<thead><tr>{"".join(titles)}</tr></thead>\n'
    return f"{box}<table>{shown}<tbody>{body}</tbody></table></div>"


def without_empty(head: Sequence[str], rows: Sequence[Sequence[str]], keep: int) -> tuple[list[int], list[list[str]]]:
    """The columns in which some row has something, and the rows' cells there; the first `keep` columns stay."""
    kept = [at for at in range(len(head)) if at < keep or any(row[at] for row in rows)]
    return kept, [[row[at] for at in kept] for row in rows]


def section(title: str, *parts: str, hint: str = "") -> str:
    """A box of the page under a title, with words about it."""
    said = f'<p class="hint">{text(hint)}</p>' if hint else ""
    return f'<section data-part="{text(title)}"><h2>{text(title)}</h2>{said}{"".join(parts)}</section>'


def folded(title: str, *parts: str, is_open: bool = False, name: str = "") -> str:
    """Parts that are shown when their title is clicked. `name` tells it from others where its title changes."""
    named = f'data-part="{text(name or title)}"{" open" * is_open}'
    return f"<details {named}><summary>{text(title)}</summary>{''.join(parts)}</details>"


def code(value: str) -> str:
    """Lines of a program, or of a difference."""
    return f'<pre class="mono scroll">{text(value)}</pre>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with values, side by side."""
    told = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{told}</dl>'


def paragraphs(lines: Iterable[str]) -> str:
    """A paragraph a line."""
    return "".join(f"<p>{text(line)}</p>" for line in lines)


def part(name: str) -> str:
    """The text of a file of this folder."""
    return files("qpdsl.tui.report").joinpath(name).read_text("utf-8")


def framed(title: str, heading: str, body: str, *, live: bool = False) -> str:
    """A whole page; one that is `live` asks the server that it came from for what is newer."""
    values = {
        "connect": " connect-src 'self';" if live else "",
        "title": text(title),
        "style": part("parts.css") + part("report.css"),
        "live": "live" if live else "",
        "heading": heading,
        "body": body,
        "script": part("report.js"),
    }
    return _filled(part("report.html"), values)


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with each value in the place of its mark, such as `{{title}}`, which stands in it once.

    The marks stand in the order of `values`. What looks like a mark within a value stays as it is.
    """
    done = ""
    for name, value in values.items():
        before, mark, template = template.partition(f"{{{{{name}}}}}")
        assert mark, f"the template has no place for `{name}`"
        done += before + value
    return done + template
