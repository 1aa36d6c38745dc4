"""Screens of a terminal, one after the other, as one SVG that a browser plays: with styles alone, and no script.

A line that stays the same over several screens is drawn once, and shown as long as it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

# A cell in points of the picture.
_WIDE, _TALL, _LETTERS = 8.4, 18, 14
_MARGIN = 12


class Frame(NamedTuple):
    """What a screen showed, line by line, and for how many seconds."""

    lines: Sequence[Strip]
    seconds: float


def animated_svg(frames: Sequence[Frame], title: str, foreground: str, background: str) -> str:
    """The frames in an endless loop. Whoever wants no motion sees the last."""
    whole = sum(frame.seconds for frame in frames)
    begins = [sum(frame.seconds for frame in frames[:at]) for at in range(len(frames) + 1)]
    spans: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for number, frame in enumerate(frames):
        for row, strip in enumerate(frame.lines):
            shown = spans.setdefault((row, _line(strip, row, foreground)), [])
            if shown and shown[-1][1] == number:
                shown[-1] = shown[-1][0], number + 1
            else:
                shown.append((number, number + 1))
    styles: dict[tuple[tuple[int, int], ...], str] = {}
    lines, last = [], len(frames)
    for (_, drawn), when in spans.items():
        if not drawn:
            continue
        if when == [(0, last)]:
            lines.append(drawn)
            continue
        name = styles.setdefault(tuple(when), f"f{len(styles)}")
        kept = " last" if when[-1][1] == last else ""
        lines.append(f'<g class="f{kept} {name}">{drawn}</g>')
    keyframes = [_keyframes(name, when, begins, whole, last) for when, name in styles.items()]
    columns, rows = max(strip.cell_length for strip in frames[0].lines), len(frames[0].lines)
    width, height = columns * _WIDE + 2 * _MARGIN, rows * _TALL + 2 * _MARGIN
    style = (
        f"text{{font:{_LETTERS}px 'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}}"
        f".f{{animation:{whole:g}s step-end infinite}}"
        "@media(prefers-reduced-motion:reduce){.f{animation:none!important;visibility:hidden}.last{visibility:visible}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            f"<title>{escape(title)}</title><style>{style}{''.join(keyframes)}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{background}"/>',
            f'<g transform="translate({_MARGIN} {_MARGIN})">',
            *lines,
            "</g></svg>\n",
        ]
    )


def _keyframes(name: str, when: Sequence[tuple[int, int]], begins: Sequence[float], whole: float, last: int) -> str:
    points = {} if when[0][0] == 0 else {0.0: "hidden"}
    for first, end in when:
        points[begins[first]] = "visible"
        if end < last:
            points[begins[end]] = "hidden"
    steps = "".join(f"{at / whole * 100:.4g}%{{visibility:{value}}}" for at, value in points.items())
    return f".{name}{{animation-name:{name}}}@keyframes {name}{{{steps}}}"


def _line(strip: Strip, row: int, foreground: str) -> str:
    """The backgrounds and texts of a line; empty where it is blank."""
    drawn, column = [], 0
    for text, style, control in Strip.join([strip]).simplify():
        if control:
            continue
        style, cells = style or Style(), cell_len(text)
        ink = _colour(style.color) or foreground
        ground = _colour(style.bgcolor)
        if style.reverse:
            ink, ground = ground or "#000", ink
        x, y = column * _WIDE, row * _TALL
        if ground is not None:
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{cells * _WIDE:.1f}" height="{_TALL}" fill="{ground}"/>')
        if text.strip():
            skipped = len(text) - len(text.lstrip(" "))
            shown = text.strip(" ")
            more = ' font-weight="bold"' if style.bold else ""
            more += ' font-style="italic"' if style.italic else ""
            more += ' text-decoration="underline"' if style.underline else ""
            place = f'x="{x + skipped * _WIDE:.1f}" y="{y + _LETTERS}" textLength="{cell_len(shown) * _WIDE:.1f}"'
            drawn.append(f'<text {place} fill="{ink}"{more}>{escape(shown, quote=False)}</text>')
        column += cells
    return "".join(drawn)


def _colour(colour: object) -> str | None:
    triplet = getattr(colour, "triplet", None)
    return None if triplet is None else triplet.hex
