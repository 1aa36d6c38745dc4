"""The server over stdio: it answers the requests of an editor from the documents that are open there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from qpdsl import __version__
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.source import Source
from qpdsl.lsp.completion import complete
from qpdsl.lsp.definitions import definition
from qpdsl.lsp.diagnostics import lsp_diagnostics, quick_fixes
from qpdsl.lsp.document import Document, read
from qpdsl.lsp.hover import hover
from qpdsl.lsp.positions import offset_at, range_of, whole
from qpdsl.lsp.references import NotRenamed, references, renamed
from qpdsl.planner.names.modules import Environment

EnvironmentOf = Callable[[Path | None], Environment]

# A text that is checked in less than this is checked on every edit.
_AT_ONCE = 0.1


class Documents:
    """The open documents. One whose text has changed is parsed and checked again."""

    def __init__(self, server: LanguageServer, environment: EnvironmentOf) -> None:
        self._server = server
        self._environment = environment
        self._by_uri: dict[str, Document] = {}
        self._seconds: dict[str, float] = {}

    def seconds(self, uri: str) -> float:
        """How long reading the document took the last time, 0 if it never was read."""
        return self._seconds.get(uri, 0.0)

    def get(self, uri: str) -> Document:
        text = self._server.workspace.get_text_document(uri).source.replace("\r\n", "\n")
        document = self._by_uri.get(uri)
        if document is None or document.source.text != text:
            start = time.perf_counter()
            document = self._by_uri[uri] = self._read(uri, text)
            self._seconds[uri] = time.perf_counter() - start
        return document

    def refresh(self, uri: str) -> Document:
        """The document read again, because files that it uses may have changed."""
        self._by_uri.pop(uri, None)
        return self.get(uri)

    def close(self, uri: str) -> None:
        self._by_uri.pop(uri, None)
        self._seconds.pop(uri, None)

    def _read(self, uri: str, text: str) -> Document:
        name = to_fs_path(uri) if uri.startswith("file:") else None
        path = Path(name) if name else None
        return read(Source(name or uri, text), self._environment(path.parent if path else None), path)


def make_server(environment: EnvironmentOf) -> LanguageServer:
    """A server that checks programs against the environment of their folder, which `environment` returns."""
    server = LanguageServer("qpdsl", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Incremental)
    documents = Documents(server, environment)
    waiting: dict[str, asyncio.TimerHandle] = {}

    def forget(uri: str) -> None:
        if uri in waiting:
            waiting.pop(uri).cancel()

    def publish(uri: str, document: Document) -> None:
        forget(uri)
        diagnostics = lsp_diagnostics(document, uri)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, diagnostics))

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: lsp.DidOpenTextDocumentParams) -> None:
        publish(params.text_document.uri, documents.get(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def did_change(params: lsp.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        forget(uri)
        seconds = documents.seconds(uri)
        if seconds < _AT_ONCE:
            publish(uri, documents.get(uri))
        else:
            # A long text is checked when no edit has come for as long as the check takes.
            loop = asyncio.get_running_loop()
            waiting[uri] = loop.call_later(seconds, lambda: publish(uri, documents.get(uri)))

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def did_save(params: lsp.DidSaveTextDocumentParams) -> None:
        publish(params.text_document.uri, documents.refresh(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: lsp.DidCloseTextDocumentParams) -> None:
        forget(params.text_document.uri)
        documents.close(params.text_document.uri)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def show_hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = documents.get(params.text_document.uri)
        markdown = hover(document, offset_at(document.source, params.position))
        if markdown is None:
            return None
        text, span = markdown
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text), range_of(document.source, span))

    @server.feature(
        lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[" ", "=", "(", "{", '"', ":"])
    )
    def list_completions(params: lsp.CompletionParams) -> lsp.CompletionList:
        document = documents.get(params.text_document.uri)
        items = complete(document, offset_at(document.source, params.position))
        return lsp.CompletionList(is_incomplete=False, items=items)

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def go_to_definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        document = documents.get(params.text_document.uri)
        target = definition(document, offset_at(document.source, params.position))
        if target is None:
            return None
        uri = target.path.as_uri() if target.path is not None else params.text_document.uri
        return lsp.Location(uri, range_of(target.source, target.span))

    @server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
    def list_references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        document = documents.get(params.text_document.uri)
        spans = references(document, offset_at(document.source, params.position))
        return [lsp.Location(params.text_document.uri, range_of(document.source, span)) for span in spans]

    @server.feature(lsp.TEXT_DOCUMENT_RENAME)
    def rename(params: lsp.RenameParams) -> lsp.WorkspaceEdit:
        document = documents.get(params.text_document.uri)
        try:
            spans = renamed(document, offset_at(document.source, params.position), params.new_name)
        except NotRenamed as why:
            raise JsonRpcInvalidParams(str(why)) from why
        edits = [lsp.TextEdit(range_of(document.source, span), params.new_name) for span in spans]
        return lsp.WorkspaceEdit(changes={params.text_document.uri: edits})

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def format_document(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
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
    def list_code_actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return quick_fixes(documents.get(params.text_document.uri), params.text_document.uri, params.range)

    return server
