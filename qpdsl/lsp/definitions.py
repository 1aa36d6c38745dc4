"""What a name in a program means, and where it was declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import makers
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import FileRefused, Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span
from qpdsl.lsp.document import Document
from qpdsl.planner.names.scope import made_name

Declaration = ast.Model | ast.Schema | ast.Program | ast.Param
_START = Span(0, 0)


@dataclass(frozen=True)
class Place:
    """Where something is declared: a span in a file, or the start of a file; `path` None is the document itself."""

    span: Span
    source: Source
    path: Path | None = None
    node: ast.Node | None = None


def declarations(document: Document) -> Iterator[Place]:
    """Models, schemas and programs that the document can name: its own first, then those of the files that it uses."""
    if document.file is not None:
        yield from _declared(document.file, document.environment.files, None, set())


def definition(document: Document, offset: int) -> Place | None:
    """Where the name at a caret was declared, or the file that a path there leads to."""
    return _at(document, caret(document, offset))


def caret(document: Document, offset: int) -> int:
    """The point that a caret is meant for: behind the last letter of a name it is that letter."""
    before = document.source.text[max(0, offset - 1) : offset]
    is_end = before.isidentifier() and _at(document, offset) is None and _at(document, offset - 1) is not None
    return offset - 1 if is_end else offset


def _at(document: Document, offset: int) -> Place | None:
    if document.file is None:
        return None
    nodes = document.nodes_at(offset)
    for node in reversed(nodes):
        match node:
            case ast.Name(id=name):
                return _row_name(document, name, offset)
            case ast.ModelRef(name=name, quoted=False):
                return _declared_as(document, name, ast.Model)
            case ast.SchemaTarget(name=name) | ast.TypeRef(name=name):
                return _declared_as(document, name, ast.Schema)
            case ast.Call(program=name) if _within(node.name_span, offset):
                return _declared_as(document, name, ast.Program)
            case ast.Use(path=path) | ast.GrammarTarget(path=path):
                return _file(document.environment.files, path)
            case ast.Schema(path=str(path)) if node.path_span is not None and _within(node.path_span, offset):
                return _file(document.environment.files, path)
            case ast.Model() | ast.Schema() | ast.Program() | ast.Param() if _within(node.name_span, offset):
                return Place(node.name_span, document.source, node=node)
    return None


def _row_name(document: Document, name: str, offset: int) -> Place | None:
    """A column, made by the last stage before that makes it, else a parameter."""
    program = document.program_at(offset)
    if program is None:
        return None
    for made, stage in reversed(list(makers(program.body))):
        if made == name and stage.span.start <= offset:
            return Place((made_name(stage) or stage).span, document.source, node=stage)
    for param in program.params:
        if param.name == name:
            return Place(param.name_span, document.source, node=param)
    return None


def _declared_as(document: Document, name: str, kind: type[Declaration]) -> Place | None:
    places = declarations(document)
    return next((p for p in places if isinstance(p.node, kind) and getattr(p.node, "name", None) == name), None)


def _declared(file: ast.File, files: Files, path: Path | None, seen: set[Path]) -> Iterator[Place]:
    nodes: tuple[ast.Model | ast.Schema | ast.Program, ...] = (*file.models, *file.schemas, *file.programs)
    for node in nodes:
        yield Place(node.name_span, file.source, path, node)
    for use in file.uses:
        try:
            target = files.resolve(use.path)
            if target in seen:
                continue
            seen.add(target)
            used = parse_file(Source(str(target), files.read(use.path)))
        except (FileRefused, QpError):
            continue
        yield from _declared(used, Files(target.parent, (*files.allowed, *_folder(files))), target, seen)


def _folder(files: Files) -> tuple[Path, ...]:
    return (files.folder,) if files.folder is not None else ()


def _file(files: Files, path: str) -> Place | None:
    try:
        target = files.resolve(path)
    except FileRefused:
        return None
    return Place(_START, Source(str(target), ""), target) if target.is_file() else None


def _within(span: Span, offset: int) -> bool:
    return span.start <= offset < span.end
