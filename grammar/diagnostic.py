"""Errors and warnings: what is wrong, where, why, and what to write instead.

    Exception
    └── QpError            one or more diagnostics about one source, in source order

A diagnostic is data. `render` shows it as text, the faulty lines with carets under them; `to_json` as plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from qpdsl.grammar.printable import cells, one_line, printable
from qpdsl.grammar.source import Source, Span

Severity = Literal["error", "warning"]
MAX_DIAGNOSTICS = 100
# The most characters of a line that are shown.
_WINDOW = 140
# Of ANSI's colours those that can be read on black and on white.
_COLOURS = {"error": "\033[1;31m", "warning": "\033[1;35m", "help": "\033[1m", "gutter": "\033[1m"}
_RESET = "\033[0m"


@dataclass(frozen=True, slots=True)
class Label:
    """A second place in the source that says why the first is wrong."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement that mends the source; an empty span inserts."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error or warning. `label` stands under the primary span; `edit` is what `help` proposes, shown as a line.

    `source` is the file that the spans point into, where that is not the file checked but one that it uses.
    """

    code: str
    message: str
    span: Span
    label: str = ""
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    edit: Edit | None = None
    severity: Severity = "error"
    source: Source | None = None


class QpError(Exception):
    """A program that cannot be used as it stands: its diagnostics, and the source that they point into.

    Of very many diagnostics the first `MAX_DIAGNOSTICS` are kept; `more` counts the rest.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic], source: Source) -> None:
        ordered = in_order(diagnostics)
        self.diagnostics = ordered[:MAX_DIAGNOSTICS]
        self.more = len(ordered) - len(self.diagnostics)
        self.source = source
        super().__init__(self.diagnostics, source)

    def __str__(self) -> str:
        return render_all(self)


def more_note(more: int, severity: Severity = "error") -> str | None:
    """The line that counts the diagnostics beyond those shown, None where all are."""
    return f"… and {more:,} more {severity}{'' if more == 1 else 's'}" if more else None


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The diagnostics in source order, each once; those of other files follow, file by file."""

    def key(diagnostic: Diagnostic) -> tuple[str, int, int, str]:
        file = diagnostic.source.name if diagnostic.source else ""
        return file, diagnostic.span.start, diagnostic.span.end, diagnostic.code

    return tuple(sorted(dict.fromkeys(diagnostics), key=key))


def to_json(diagnostic: Diagnostic, source: Source) -> dict[str, Any]:
    """The diagnostic as plain data with stable keys; lines and columns count from 1, the end is exclusive."""
    source = diagnostic.source or source

    def place(span: Span) -> dict[str, int]:
        line, column = source.position(span.start)
        end_line, end_column = source.position(span.end)
        return {"line": line, "column": column, "end_line": end_line, "end_column": end_column}

    edit = diagnostic.edit
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "file": source.name,
        **place(diagnostic.span),
        "label": diagnostic.label,
        "related": [{**place(label.span), "label": label.text} for label in diagnostic.secondary],
        "notes": list(diagnostic.notes),
        "help": diagnostic.help,
        "edit": None if edit is None else {**place(edit.span), "text": edit.text},
    }


def render_all(error: QpError, *, colour: bool = False) -> str:
    """All diagnostics of an error, a blank line between two, and a last line that counts those left out."""
    texts = [render(diagnostic, error.source, colour=colour) for diagnostic in error.diagnostics]
    note = more_note(error.more)
    return "\n\n".join([*texts, note] if note else texts)


def render(diagnostic: Diagnostic, source: Source, *, colour: bool = False) -> str:
    """The diagnostic in the form that a terminal shows, without a trailing newline.

    Whatever a terminal would obey is escaped, in the program's text and in what is said of it; with `colour` the only
    control sequences are the colours of the parts.
    """
    return "\n".join(
        "".join(_painted(text, role if colour else None) for text, role in line).rstrip()
        for line in _lines(diagnostic, diagnostic.source or source)
    )


# Texts, each with the part whose colour it takes.
_Line = list[tuple[str, str | None]]


def _painted(text: str, role: str | None) -> str:
    shown = printable(text, tabs=False)
    return f"{_COLOURS[role]}{shown}{_RESET}" if role is not None and shown else shown


def _lines(diagnostic: Diagnostic, source: Source) -> Iterator[_Line]:
    marks = [_mark(source, diagnostic.span, diagnostic.label, primary=True)]
    marks += [_mark(source, label.span, label.text, primary=False) for label in diagnostic.secondary]
    marks.sort(key=lambda mark: (mark.line, not mark.primary, mark.start))
    width = len(str(max(mark.line for mark in marks)))
    bar = (" " * (width + 1) + " |", "gutter")

    line, column = source.position(diagnostic.span.start)
    yield [(f"{diagnostic.severity}[{diagnostic.code}]", diagnostic.severity), (f": {diagnostic.message}", None)]
    yield [(" " * (width + 1) + "-->", "gutter"), (f" {one_line(source.name)}:{line}:{column}", None)]
    yield [bar]
    current, text, offset = 0, "", 0
    for mark in marks:
        if mark.line != current or not offset <= mark.start <= offset + _WINDOW:
            text, offset = _window(source.line(mark.line), mark.start)
            yield [(f" {mark.line:>{width}} |", "gutter"), (f" {text}", None)]
            current = mark.line
        yield [bar, (" ", None), (_underline(text, mark, offset), diagnostic.severity if mark.primary else "gutter")]
    for note in diagnostic.notes:
        yield [(f"{' ' * (width + 2)}= note: {note}", None)]
    if diagnostic.help is not None:
        yield [("help", "help"), (f": {diagnostic.help}", None)]
        if diagnostic.edit is not None:
            yield [bar]
            first, column = source.position(diagnostic.edit.span.start)
            for number, edited in enumerate(_edited_lines(source, diagnostic.edit), first):
                text, _ = _window(edited, column - 1)
                yield [(f" {number:>{width}} |", "gutter"), (f" {text}", None)]


@dataclass(frozen=True, slots=True)
class _Mark:
    """An underline on one line: columns from 0, end exclusive."""

    line: int
    start: int
    end: int
    text: str
    primary: bool


def _mark(source: Source, span: Span, text: str, *, primary: bool) -> _Mark:
    """The mark of a span; one that runs over several lines is marked on its first."""
    line, column = source.position(span.start)
    last, end = source.position(span.end)
    stop = end - 1 if last == line else len(source.line(line))
    return _Mark(line, column - 1, max(stop, column), text, primary)


def _window(text: str, column: int) -> tuple[str, int]:
    """The line, cut to what a screen can hold around a column, and the column where it was cut."""
    if len(text) <= _WINDOW:
        return text, 0
    start = max(0, min(column - _WINDOW // 2, len(text) - _WINDOW))
    cut = text[start : start + _WINDOW]
    head = "…" if start else ""
    tail = "…" if start + _WINDOW < len(text) else ""
    return head + cut[len(head) : _WINDOW - len(tail)] + tail, start


def _underline(text: str, mark: _Mark, offset: int) -> str:
    start, end = mark.start - offset, min(mark.end - offset, max(len(text), mark.start - offset + 1))
    lead = " " * _cells(text[:start])
    sign = "^" if mark.primary else "-"
    return f"{lead}{sign * max(1, _cells(text[start:end]))} {mark.text}".rstrip()


def _edited_lines(source: Source, edit: Edit) -> list[str]:
    """The lines that an edit touches, as they are after it."""
    line, column = source.position(edit.span.start)
    last, end = source.position(edit.span.end)
    return (source.line(line)[: column - 1] + edit.text + source.line(last)[end - 1 :]).split("\n")


def _cells(text: str) -> int:
    """The cells that a text takes where it is shown, so that carets stay under what they mark."""
    return cells(printable(text, tabs=False))
