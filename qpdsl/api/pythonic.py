"""What the checker says of a program that was written in Python, in terms that hold there."""

from __future__ import annotations

import re
from dataclasses import replace

from qpdsl.grammar.diagnostic import Diagnostic, QpError

_WORD = re.compile(r"[A-Za-z_]\w*")


def pythonic(error: QpError) -> QpError:
    """The error without what shows `.qp` text: the forms of stages, and edits that are more than another name."""
    return QpError([_diagnostic(diagnostic) for diagnostic in error.diagnostics], error.source)


def _diagnostic(diagnostic: Diagnostic) -> Diagnostic:
    notes = tuple(note for note in diagnostic.notes if not note.startswith("form: "))
    edit = diagnostic.edit if diagnostic.edit and _WORD.fullmatch(diagnostic.edit.text) else None
    return replace(diagnostic, notes=notes, edit=edit)
