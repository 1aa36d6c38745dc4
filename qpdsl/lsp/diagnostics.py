"""Findings of parser and checker as the editor shows them, and their mends as quick fixes."""

from __future__ import annotations

from lsprotocol import types as lsp

from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.lsp.document import Document
from qpdsl.lsp.positions import range_of

_SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}


def shown(document: Document, uri: str) -> list[lsp.Diagnostic]:
    """All findings in the document; what is wrong with a file that it uses stands at its first line."""
    return [_shown(document, finding, uri) for finding in document.found]


def _shown(document: Document, found: Diagnostic, uri: str) -> lsp.Diagnostic:
    source = document.source
    text = [found.message, *(f"note: {note}" for note in found.notes), *([f"help: {found.help}"] if found.help else [])]
    if found.source is not None:
        line, column = found.source.position(found.span.start)
        start = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
        text[0] = f"{found.source.name}:{line}:{column}: {text[0]}"
        return lsp.Diagnostic(start, "\n".join(text), _SEVERITIES[found.severity], found.code, source="qpdsl")
    related = [
        lsp.DiagnosticRelatedInformation(lsp.Location(uri, range_of(source, label.span)), label.text or "see here")
        for label in found.secondary
    ]
    return lsp.Diagnostic(
        range_of(source, found.span),
        "\n".join(text),
        _SEVERITIES[found.severity],
        found.code,
        source="qpdsl",
        related_information=related,
    )


def fixes(document: Document, uri: str, wanted: lsp.Range) -> list[lsp.CodeAction]:
    """The mends of what is wrong in a range."""
    found = []
    for finding in document.found:
        where = range_of(document.source, finding.span)
        if finding.edit is None or finding.source is not None or where.end < wanted.start or wanted.end < where.start:
            continue
        edit = lsp.TextEdit(range_of(document.source, finding.edit.span), finding.edit.text)
        found.append(
            lsp.CodeAction(
                finding.help or "mend it",
                kind=lsp.CodeActionKind.QuickFix,
                diagnostics=[_shown(document, finding, uri)],
                edit=lsp.WorkspaceEdit({uri: [edit]}),
                is_preferred=True,
            )
        )
    return found
