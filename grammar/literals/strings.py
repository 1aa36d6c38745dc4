"""String literals: escapes, `{name}` interpolation, and the dedent of triple-quoted text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import RESERVED

_STEPS = r"(?:\.[A-Za-z_][A-Za-z0-9_]*|\[-?\d{1,9}\])+"
# What stands between braces where a value is put in: a name, and perhaps a path into its value.
INSERTED = rf"[ \t]*([A-Za-z_][A-Za-z0-9_]*)({_STEPS})?[ \t]*"
_SPECIAL = re.compile(rf"\\u([0-9a-fA-F]{{4}})|\\(.)|\{{{INSERTED}\}}|\{{([^{{}}\\\n]*)\}}", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(-?\d+)\]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "{": "{", "}": "}"}


def template(raw: str, start: int) -> tuple[ast.Template, list[Diagnostic]]:
    """The string literal `raw`, quotes and all, that stands at offset `start` of the source."""
    text, offsets = _long(raw, start) if raw.startswith('"""') else (raw[1:-1], range(start + 1, start + len(raw)))
    parts: list[str | ast.Name | ast.Path] = []
    braced: list[ast.Braced] = []
    faults: list[Diagnostic] = []
    end = 0

    def add(piece: str) -> None:
        if piece and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        elif piece:
            parts.append(piece)

    for match in _SPECIAL.finditer(text):
        add(text[end : match.start()])
        end = match.end()
        span = Span(offsets[match.start()], offsets[match.end() - 1] + 1)
        point, letter, name, steps, inner = match.groups()
        if name is not None:
            if name in RESERVED:
                add(match[0])
            else:
                whole = Span(offsets[match.start(3)], offsets[match.end(4 if steps else 3) - 1] + 1)
                base = ast.Name(name, span=Span(whole.start, whole.start + len(name)))
                parts.append(ast.Path(base, path_steps(steps), span=whole) if steps else base)
        elif inner is not None:
            add(match[0])
            braced.append(ast.Braced(inner, span=span))
        elif point is not None:
            char = chr(int(point, 16))
            if "\ud800" <= char <= "\udfff":
                faults.append(Diagnostic("QP108", f"`{match[0]}` is half of a character", span, "a surrogate"))
            else:
                add(char)
        elif letter in _ESCAPES:
            add(_ESCAPES[letter])
        else:
            faults.append(_unknown_escape(letter, span))
    add(text[end:])
    return ast.Template(tuple(parts), tuple(braced), span=Span(start, start + len(raw))), faults


def path_steps(text: str) -> tuple[str | int, ...]:
    """The steps of a path as written: `.name[0]` is ("name", 0)."""
    return tuple(name if name else int(place) for name, place in _STEP.findall(text))


def _unknown_escape(letter: str, span: Span) -> Diagnostic:
    escape = f"`\\{letter}`" if letter.isprintable() else "a backslash before the end of the line"
    return Diagnostic(
        "QP108",
        f"unknown escape {escape}",
        span,
        notes=(r"escapes are `\n`, `\t`, `\r`, `\\`, `\"`, `\{`, `\}` and `\uXXXX`",),
        help="a backslash itself is written twice",
        edit=Edit(Span(span.start, span.start + 1), "\\\\") if letter.isprintable() else None,
    )


def _long(raw: str, start: int) -> tuple[str, Sequence[int]]:
    """The text between triple quotes without its common indentation, and the source offset of each character.

    A first line with nothing on it is dropped, and so is a last one: the quotes may stand on lines of their own.
    """
    lines: list[tuple[str, int]] = []
    offset = start + 3
    for line in raw[3:-3].split("\n"):
        lines.append((line.rstrip("\r"), offset))
        offset += len(line) + 1
    indented = [line for line, _ in lines[1:] if line.strip()]
    if len(lines) > 1 and not lines[-1][0].strip():
        indented.append(lines[-1][0] + "x")
    margin = _common([line[: len(line) - len(line.lstrip())] for line in indented])
    body = [lines[0], *((line[margin:], at + min(margin, len(line))) for line, at in lines[1:])]
    if len(body) > 1 and not body[-1][0].strip():
        body.pop()
    if len(lines) > 1 and not body[0][0].strip():
        body.pop(0)
    text, offsets = [], []
    for index, (line, at) in enumerate(body):
        blank = not line.strip() and index > 0
        text.append("" if blank else line)
        offsets += [] if blank else list(range(at, at + len(line)))
        if index + 1 < len(body):
            text.append("\n")
            offsets.append(at + len(line))
    return "".join(text), offsets


def reindented(raw: str, indent: int) -> str:
    """A triple-quoted literal over several lines, indented anew if that leaves it the same text; others as they are."""
    if not raw.startswith('"""') or "\n" not in raw:
        return raw
    text = _long(raw, 0)[0]
    margin = " " * indent
    lines = [f"{margin}{line}" if line else "" for line in text.split("\n")]
    anew = "\n".join(['"""', *lines, f'{margin}"""'])
    return anew if _long(anew, 0)[0] == text else raw


def _common(texts: list[str]) -> int:
    """The length of the longest beginning that all texts share."""
    if not texts:
        return 0
    low, high = min(texts), max(texts)
    return next((index for index, char in enumerate(low) if high[index] != char), len(low))
