"""The checker's errors about a program written in Python, in the words of the Python face."""

from __future__ import annotations

import re
from dataclasses import replace

from qpdsl.grammar.diagnostic import Diagnostic, QpError

_WORD = re.compile(r"[A-Za-z_]\w*")


# Spellings of `.qp` text in help, and how Python spells the same.
_SPELLINGS = tuple(
    (re.compile(text), python)
    for text, python in (
        (r"`score (\w+) into (\w+)`", r'`rows.score(\1, into="\2")`'),
        (r"`score (\w+)`", r"`rows.score(\1)`"),
        (r"`extract (\w+) = /regex/`", r'`rows.extract("\1", r"…")`'),
        (r"`generate … as (\w+)`", r"`rows.generate(…, as_=\1)`"),
        (r"`reduce=(\w+)`", r'`reduce="\1"`'),
        (r"`(all|any|max|mean|min)\(", r"`qp.\1("),
        (r"`-> text`", "`-> str`"),
    )
)


def pythonic(error: QpError) -> QpError:
    """The error without what shows `.qp` text: the forms of stages, and edits that are more than another name."""
    return QpError([_diagnostic(diagnostic) for diagnostic in error.diagnostics], error.source)


def _diagnostic(diagnostic: Diagnostic) -> Diagnostic:
    notes = tuple(note for note in diagnostic.notes if not note.startswith("form: "))
    help, edit = diagnostic.help, diagnostic.edit
    for text, python in _SPELLINGS:
        help = help and text.sub(python, help)
    if edit is not None and not _WORD.fullmatch(edit.text):
        edit = None
    elif edit is not None and diagnostic.code == "QP214" and edit.text == "text":
        edit = replace(edit, text="str")
    return replace(diagnostic, notes=notes, help=help, edit=edit)
