"""References: every place in a program that names the same thing, and new names for it.

A column is one thing in its whole program, whichever stages make it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import COLUMNS, RESERVED
from qpdsl.lsp.definitions import Definition, caret, definition
from qpdsl.lsp.document import Document, read

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a name stands for: a column of a program, or what is declared at a place of a file.
_Thing = tuple[object, ...]


class NotRenamed(Exception):
    """A name that cannot be given to what is at the caret, or what is there has no name of its own; says why."""


def references(document: Document, offset: int) -> list[Span]:
    """The places of this text that name what the caret is at, its declaration among them; none where it is at none."""
    target = definition(document, offset)
    if target is None or document.file is None:
        return []
    at = caret(document, offset)
    thing, name = _thing(document, target, at), _written(document, at)
    spans = {span for text, span in _names(document.file) if text == name}
    return sorted((span for span in spans if _is(document, span, thing)), key=lambda span: span.start)


def renamed(document: Document, offset: int, name: str) -> list[Span]:
    """The places of this text at which `name` replaces the name that the caret is at. Raises NotRenamed."""
    target, old = definition(document, offset), _written(document, caret(document, offset))
    if target is None or document.file is None:
        raise NotRenamed("there is no name here")
    if target.path is not None:
        raise NotRenamed(f"`{old}` is declared in `{target.path.name}`: rename it there")
    spans = references(document, offset)
    if old in COLUMNS or not all(document.source.text[span.start : span.end] == old for span in spans):
        raise NotRenamed(f"`{old}` is a name of the language's own")
    if not _NAME.fullmatch(name) or name in RESERVED or name in COLUMNS:
        raise NotRenamed(f"`{name}` cannot be a name here")
    if any(known == name for known, _ in _names(document.file)):
        raise NotRenamed(f"`{name}` is taken")
    text = document.source.text
    for span in reversed(spans):
        text = text[: span.start] + name + text[span.end :]
    after = read(Source(document.source.name, text), document.environment, document.path)
    if after.file is None or len(after.diagnostics) > len(document.diagnostics):
        raise NotRenamed(f"`{name}` would make this program invalid")
    return spans


def _names(file: ast.File) -> Iterator[tuple[str, Span]]:
    """Every name that is written in a file, and where."""
    for node in walk(file):
        match node:
            case ast.Name(id=name) | ast.ModelRef(name=name, quoted=False):
                yield name, node.span
            case ast.SchemaTarget(name=name) | ast.TypeRef(name=name):
                yield name, Span(node.span.end - len(name), node.span.end)
            case ast.Call(program=name):
                yield name, node.name_span
            case ast.Argument(name=str(name)):
                yield name, Span(node.span.start, node.span.start + len(name))
            case ast.Model(name=name) | ast.Schema(name=name) | ast.Program(name=name) | ast.Param(name=name):
                yield name, node.name_span


def _thing(document: Document, target: Definition, offset: int) -> _Thing:
    if isinstance(target.node, ast.Stage):
        program = document.program_at(offset)
        return ("column", None if program is None else program.name_span)
    return (target.path, target.span, type(target.node))


def _is(document: Document, span: Span, thing: _Thing) -> bool:
    found = definition(document, span.start)
    return found is not None and _thing(document, found, span.start) == thing


def _written(document: Document, offset: int) -> str:
    """The name at a caret."""
    assert document.file is not None
    return next((name for name, span in _names(document.file) if span.start <= offset < span.end), "")
