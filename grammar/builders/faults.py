"""What is wrong with a text, collected while its tree is built."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import did_you_mean


class Faults:
    """The `diagnostics` of one text. Builders report to it and go on."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def report(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> None:
        self.diagnostics.append(Diagnostic(code, message, span, label, **more))

    def report_unknown(
        self,
        code: str,
        message: str,
        span: Span,
        word: str,
        known: Iterable[str],
        label: str = "",
        *,
        notes: tuple[str, ...] = (),
    ) -> None:
        """A word that is none of the known ones; the nearest of them is proposed in its place."""
        help, edit = did_you_mean(word, known, span)
        self.report(code, message, span, label, notes=notes, help=help, edit=edit)

    def report_repeated(self, what: str, span: Span, first: Span) -> None:
        """An option or clause that is given again."""
        self.report("QP117", f"{what} is given twice", span, "again here", secondary=(Label(first, "the first"),))
