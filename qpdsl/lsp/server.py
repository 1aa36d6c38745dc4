"""The server over stdio: requests of the editor, answered from the documents it has open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from qpdsl import __version__
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.source import Source
from qpdsl.lsp.completion import complete
from qpdsl.lsp.definitions import definition
from qpdsl.lsp.diagnostics import fixes, shown
from qpdsl.lsp.document import Document, read
from qpdsl.lsp.hover import hover
from qpdsl.lsp.positions import offset_at, range_of, whole
from qpdsl.planner.names.modules import Environment

EnvironmentOf = Callable[[Path | None], Environment]


class Documents:
    """The documents that are open, read anew where their text has changed."""

    def __init__(self, server: LanguageServer, environment: EnvironmentOf) -> None:
        self._server = server
        self._environment = environment
        self._read: dict[str, Document] = {}

    def get(self, uri: str) -> Document:
        text = self._server.workspace.get_text_document(uri).source.replace("\r\n", "\n")
        known = self._read.get(uri)
        if known is None or known.source.text != text:
            known = self._read[uri] = self._fresh(uri, text)
        return known

    def refresh(self, uri: str) -> Document:
        """Files that the document reads may have changed."""
        self._read.pop(uri, None)
        return self.get(uri)

    def close(self, uri: str) -> None:
        self._read.pop(uri, None)

    def _fresh(self, uri: str, text: str) -> Document:
        path = to_fs_path(uri) if uri.startswith("file:") else None
        where = Path(path) if path else None
        return read(Source(path or uri, text), self._environment(where.parent if where else None), where)


def make_server(environment: EnvironmentOf) -> LanguageServer:
    """A server whose programs are checked against what `environment` gives for their folders."""
    server = LanguageServer("qpdsl", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Incremental)
    documents = Documents(server, environment)

    def publish(uri: str, document: Document) -> None:
        found = shown(document, uri)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found))

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        publish(params.text_document.uri, documents.get(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        publish(params.text_document.uri, documents.get(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        publish(params.text_document.uri, documents.refresh(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        documents.close(params.text_document.uri)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hovered(params: lsp.HoverParams) -> lsp.Hover | None:
        document = documents.get(params.text_document.uri)
        found = hover(document, offset_at(document.source, params.position))
        if found is None:
            return None
        text, span = found
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text), range_of(document.source, span))

    @server.feature(
        lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[" ", "=", "(", "{", '"', ":"])
    )
    def completed(params: lsp.CompletionParams) -> lsp.CompletionList:
        document = documents.get(params.text_document.uri)
        items = complete(document, offset_at(document.source, params.position))
        return lsp.CompletionList(is_incomplete=False, items=items)

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def defined(params: lsp.DefinitionParams) -> lsp.Location | None:
        document = documents.get(params.text_document.uri)
        place = definition(document, offset_at(document.source, params.position))
        if place is None:
            return None
        uri = place.path.as_uri() if place.path is not None else params.text_document.uri
        return lsp.Location(uri, range_of(place.source, place.span))

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatted(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        from qpdsl.grammar.format.formatter import format_source

        document = documents.get(params.text_document.uri)
        try:
            text = format_source(document.source)
        except QpError:
            return None
        return [] if text == document.source.text else [lsp.TextEdit(whole(document.source), text)]

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix])
    )
    def mended(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return fixes(documents.get(params.text_document.uri), params.text_document.uri, params.range)

    return server
