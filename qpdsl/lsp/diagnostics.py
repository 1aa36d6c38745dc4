"""Diagnostics of parser and checker as the editor shows them, and their edits as quick fixes."""

from __future__ import annotations

from lsprotocol import types as lsp

from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.lsp.document import Document
from qpdsl.lsp.positions import range_of

_SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}


def lsp_diagnostics(document: Document, uri: str) -> list[lsp.Diagnostic]:
    """All diagnostics of the document. Those of a file that it uses stand at its first line."""
    return [_lsp_diagnostic(document, diagnostic, uri) for diagnostic in document.diagnostics]


def quick_fixes(document: Document, uri: str, selection: lsp.Range) -> list[lsp.CodeAction]:
    """The edits of the diagnostics in a range."""
    fixes = []
    for diagnostic in document.diagnostics:
        span = range_of(document.source, diagnostic.span)
        if diagnostic.edit is None or diagnostic.source is not None:
            continue
        if span.end < selection.start or selection.end < span.start:
            continue
        edit = lsp.TextEdit(range_of(document.source, diagnostic.edit.span), diagnostic.edit.text)
        fixes.append(
            lsp.CodeAction(
                diagnostic.help or "mend it",
                kind=lsp.CodeActionKind.QuickFix,
                diagnostics=[_lsp_diagnostic(document, diagnostic, uri)],
                edit=lsp.WorkspaceEdit({uri: [edit]}),
                is_preferred=True,
            )
        )
    return fixes


def _lsp_diagnostic(document: Document, diagnostic: Diagnostic, uri: str) -> lsp.Diagnostic:
    severity = _SEVERITIES[diagnostic.severity]
    help = [f"help: {diagnostic.help}"] if diagnostic.help else []
    text = [diagnostic.message, *(f"note: {note}" for note in diagnostic.notes), *help]
    if diagnostic.source is not None:
        line, column = diagnostic.source.position(diagnostic.span.start)
        start = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
        text[0] = f"{diagnostic.source.name}:{line}:{column}: {text[0]}"
        return lsp.Diagnostic(start, "\n".join(text), severity, diagnostic.code, source="qpdsl")
    source = document.source
    related = [
        lsp.DiagnosticRelatedInformation(lsp.Location(uri, range_of(source, label.span)), label.text or "see here")
        for label in diagnostic.secondary
    ]
    return lsp.Diagnostic(
        range_of(source, diagnostic.span),
        "\n".join(text),
        severity,
        diagnostic.code,
        source="qpdsl",
        related_information=related,
    )
