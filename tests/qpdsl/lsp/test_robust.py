"""Whatever stands in the document and wherever the caret is, the server has an answer."""

from __future__ import annotations

import pytest

pytest.importorskip("lsprotocol")

from qpdsl.grammar.files import Files
from qpdsl.grammar.source import Source
from qpdsl.lsp.completion import complete
from qpdsl.lsp.definitions import definition
from qpdsl.lsp.diagnostics import lsp_diagnostics, quick_fixes
from qpdsl.lsp.document import read
from qpdsl.lsp.hover import hover
from qpdsl.lsp.positions import offset_at, position, whole
from qpdsl.lsp.references import references
from qpdsl.planner.names.modules import Environment
from qpdsl.session.programs import shipped_programs


@pytest.mark.parametrize("name", ["beam_search", "constrained_json", "outline_then_write"])
def test_every_text_on_the_way_to_a_program(name: str) -> None:
    entry = shipped_programs()[name]
    text = entry.read_text("utf-8")
    environment = Environment(Files())
    for end in range(0, len(text), 7):
        document = read(Source("p.qp", text[:end]), environment)
        lsp_diagnostics(document, "file:///p.qp")
        quick_fixes(document, "file:///p.qp", whole(document.source))
        for offset in (0, end // 2, end):
            complete(document, offset)
            hover(document, offset)
            definition(document, offset)
            references(document, offset)


def test_positions_go_there_and_back() -> None:
    source = Source("p.qp", '# 🙂é\n"a🙂b"\n\nx')
    for offset in range(len(source.text) + 1):
        assert offset_at(source, position(source, offset)) == offset
