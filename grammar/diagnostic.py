"""Errors and warnings: what is wrong, where, why, and what to write instead.

    Exception
    └── QpError            one or more diagnostics about one source, in source order

A diagnostic is data; `render` and `to_json` are its two views.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

from qpdsl.grammar.source import Source, Span

Severity = OneOf["error", "warning"]
MAX_DIAGNOSTICS = 100


@dataclass(frozen=True, slots=True)
class Label:
    """A second place in the source that says why."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement that mends the source; an empty span inserts."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `label` stands under the primary span; `edit` shows the line that `help` proposes.

    `source` is the file that the spans point into where that is another than the one checked: one that it uses.
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
        found = in_order(diagnostics)
        self.diagnostics = found[:MAX_DIAGNOSTICS]
        self.more = len(found) - len(self.diagnostics)
        self.source = source
        super().__init__(self.diagnostics, source)

    def __str__(self) -> str:
        from qpdsl.grammar.render import render_all

        return render_all(self)


def more_note(error: QpError) -> str | None:
    """The line that counts the diagnostics beyond those kept, None where all are there."""
    if not error.more:
        return None
    return f"… and {error.more} more {'error' if error.more == 1 else 'errors'}"


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The diagnostics in source order, each once; those of other files follow, file by file."""

    def place(d: Diagnostic) -> tuple[str, int, int, str]:
        return d.source.name if d.source else "", d.span.start, d.span.end, d.code

    return tuple(sorted(dict.fromkeys(diagnostics), key=place))


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
