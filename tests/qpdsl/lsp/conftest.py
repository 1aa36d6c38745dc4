"""An editor: a real client that starts `qpdsl lsp` and speaks the protocol with it over stdio.

The tests of a file share one, each with a document of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("pygls")

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

MARK = "‸"


class Editor:
    """One document, `p.qp` in a folder; in its texts `‸` marks the place of the caret."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.uri = (folder / "p.qp").as_uri()
        self.caret = lsp.Position(0, 0)
        self.published: asyncio.Queue[lsp.PublishDiagnosticsParams] = asyncio.Queue()
        """What the server says of this document."""
        self._version = 0

    async def open(self, text: str) -> list[lsp.Diagnostic]:
        item = lsp.TextDocumentItem(self.uri, "qp", self._version, self._placed(text))
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        return await self.diagnostics()

    async def write(self, text: str) -> list[lsp.Diagnostic]:
        """Puts a text in the place of the document's, and waits for what is wrong with it."""
        self.type(text)
        return await self.diagnostics()

    def close(self) -> None:
        name = lsp.TextDocumentIdentifier(self.uri)
        self.client.text_document_did_close(lsp.DidCloseTextDocumentParams(name))

    def type(self, text: str) -> None:
        """Puts a text in the place of the document's."""
        self._version += 1
        change = lsp.TextDocumentContentChangeWholeDocument(self._placed(text))
        name = lsp.VersionedTextDocumentIdentifier(uri=self.uri, version=self._version)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(name, [change]))

    async def diagnostics(self) -> list[lsp.Diagnostic]:
        return list((await asyncio.wait_for(self.published.get(), 30)).diagnostics)

    async def hover(self) -> str | None:
        found = await self.client.text_document_hover_async(lsp.HoverParams(self._name, self.caret))
        assert found is None or isinstance(found.contents, lsp.MarkupContent)
        return found.contents.value if found else None

    async def complete(self) -> dict[str, str | None]:
        """What is proposed at the caret, with its details."""
        found = await self.client.text_document_completion_async(lsp.CompletionParams(self._name, self.caret))
        assert isinstance(found, lsp.CompletionList)
        return {item.label: item.detail for item in found.items}

    async def definition(self) -> lsp.Location | None:
        found = await self.client.text_document_definition_async(lsp.DefinitionParams(self._name, self.caret))
        assert found is None or isinstance(found, lsp.Location)
        return found

    async def references(self) -> list[lsp.Location]:
        params = lsp.ReferenceParams(lsp.ReferenceContext(True), self._name, self.caret)
        return list(await self.client.text_document_references_async(params) or [])

    async def rename(self, name: str) -> list[lsp.TextEdit]:
        edit = await self.client.text_document_rename_async(lsp.RenameParams(self._name, self.caret, name))
        assert edit is not None and edit.changes is not None
        (edits,) = edit.changes.values()
        return list(edits)

    async def format(self) -> list[lsp.TextEdit]:
        options = lsp.FormattingOptions(tab_size=2, insert_spaces=True)
        params = lsp.DocumentFormattingParams(self._name, options)
        return list(await self.client.text_document_formatting_async(params) or [])

    async def fixes(self) -> list[lsp.CodeAction]:
        here = lsp.Range(self.caret, self.caret)
        params = lsp.CodeActionParams(self._name, here, lsp.CodeActionContext([]))
        found = await self.client.text_document_code_action_async(params)
        return [action for action in found or [] if isinstance(action, lsp.CodeAction)]

    @property
    def _name(self) -> lsp.TextDocumentIdentifier:
        return lsp.TextDocumentIdentifier(self.uri)

    def _placed(self, text: str) -> str:
        before, mark, after = text.partition(MARK)
        if mark:
            line = before.rpartition("\n")[2]
            self.caret = lsp.Position(before.count("\n"), len(line.encode("utf-16-le")) // 2)
        return before + after


class Client:
    """A client with a server of its own, and the loop in which it speaks with it."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._client = LanguageClient("test", "1")
        self._open: Editor | None = None

        @self._client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: lsp.PublishDiagnosticsParams) -> None:
            if self._open is not None and params.uri == self._open.uri:
                self._open.published.put_nowait(params)

    async def start(self, *options: str) -> None:
        await self._client.start_io(sys.executable, "-m", "qpdsl", "lsp", *options, cwd=ROOT)
        await self._client.initialize_async(lsp.InitializeParams(lsp.ClientCapabilities()))
        self._client.initialized(lsp.InitializedParams())

    async def stop(self) -> None:
        await self._client.shutdown_async(None)
        self._client.exit(None)
        assert self._client._server is not None
        assert await self._client._server.wait() == 0
        await self._client.stop()

    def edit(self, folder: Path, act: Callable[[Editor], Awaitable[None]]) -> None:
        async def main() -> None:
            self._open = Editor(self._client, folder)
            await act(self._open)
            self._open.close()

        self._runner.run(asyncio.wait_for(main(), 120))


@contextmanager
def client(*options: str) -> Iterator[Client]:
    with asyncio.Runner() as runner:
        started = Client(runner)
        runner.run(asyncio.wait_for(started.start(*options), 120))
        yield started
        runner.run(asyncio.wait_for(started.stop(), 120))


InEditor = Callable[..., None]


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    with client() as started:
        yield started


@pytest.fixture
def in_editor(shared: Client, tmp_path: Path) -> InEditor:
    """Runs what a user does in an editor whose document lies in `tmp_path`, and whose server has these options."""

    def run(act: Callable[[Editor], Awaitable[None]], *options: str) -> None:
        with client(*options) if options else nullcontext(shared) as used:
            used.edit(tmp_path, act)

    return run
