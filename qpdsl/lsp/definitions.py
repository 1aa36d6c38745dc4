"""Definitions: where a name in a program is declared, and by which node of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_makers, column_name
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import FileRefused, Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span
from qpdsl.lsp.document import Document

Declaration = ast.Model | ast.Schema | ast.Program | ast.Param
_START = Span(0, 0)


@dataclass(frozen=True)
class Definition:
    """Where something is declared: a span in a file, or the start of a file. With `path` None it is the document.

    `begins` is how the document begins the names of the file: `shared.`, where it is used `as shared`.
    """

    span: Span
    source: Source
    path: Path | None = None
    node: ast.Node | None = None
    begins: str = ""


def declarations(document: Document) -> Iterator[Definition]:
    """Models, schemas and programs that the document can name: its own, then those of the files that it uses."""
    if document.file is not None:
        yield from _declared(document.file, document.environment.files, None, set())


def definition(document: Document, offset: int) -> Definition | None:
    """Where the name at a caret is declared, or the file that a path there leads to."""
    return _at(document, caret(document, offset))


def caret(document: Document, offset: int) -> int:
    """The offset that a caret refers to: directly after a name, the offset of the name's last letter."""
    before = document.source.text[max(0, offset - 1) : offset]
    is_end = before.isidentifier() and _at(document, offset) is None and _at(document, offset - 1) is not None
    return offset - 1 if is_end else offset


def _at(document: Document, offset: int) -> Definition | None:
    if document.file is None:
        return None
    nodes = document.nodes_at(offset)
    for node in reversed(nodes):
        match node:
            case ast.Argument(name=str(name)) if offset < node.span.start + len(name):
                return _parameter_of(document, [call for call in nodes if isinstance(call, ast.Call)], name)
            case ast.Name(id=name):
                return _name_in_row(document, name, offset)
            case ast.ModelRef(name=name, quoted=False):
                param = _parameter(document, name, offset)
                return param if param is not None else _declared_as(document, name, ast.Model)
            case ast.SchemaTarget(name=name) | ast.TypeRef(name=name):
                return _declared_as(document, name, ast.Schema)
            case ast.Call(program=name) if _within(node.name_span, offset):
                return _declared_as(document, name, ast.Program)
            case ast.Use(path=path) | ast.GrammarTarget(path=path):
                return _file(document.environment.files, path)
            case ast.Schema(path=str(path)) if node.path_span is not None and _within(node.path_span, offset):
                return _file(document.environment.files, path)
            case ast.Model() | ast.Schema() | ast.Program() | ast.Param() if _within(node.name_span, offset):
                return Definition(node.name_span, document.source, node=node)
    return None


def _name_in_row(document: Document, name: str, offset: int) -> Definition | None:
    """A column, defined by the last stage before that makes it, else a parameter."""
    program = document.program_at(offset)
    if program is None:
        return None
    for column, stage in reversed(list(column_makers(program.body))):
        if column == name and stage.span.start <= offset:
            return Definition((column_name(stage) or stage).span, document.source, node=stage)
    return _parameter(document, name, offset)


def _parameter_of(document: Document, calls: list[ast.Call], name: str) -> Definition | None:
    """A parameter of the program that is called."""
    called = _declared_as(document, calls[-1].program, ast.Program) if calls else None
    for param in called.node.params if called is not None and isinstance(called.node, ast.Program) else ():
        if called is not None and param.name == name:
            return Definition(param.name_span, called.source, called.path, param)
    return None


def _parameter(document: Document, name: str, offset: int) -> Definition | None:
    program = document.program_at(offset)
    for param in () if program is None else program.params:
        if param.name == name:
            return Definition(param.name_span, document.source, node=param)
    return None


def _declared_as(document: Document, name: str, kind: type[Declaration]) -> Definition | None:
    for declared in declarations(document):
        if isinstance(declared.node, kind) and f"{declared.begins}{declared.node.name}" == name:
            return declared
    return None


def _declared(
    file: ast.File, files: Files, path: Path | None, visited: set[Path], begins: str = ""
) -> Iterator[Definition]:
    nodes: tuple[ast.Model | ast.Schema | ast.Program, ...] = (*file.models, *file.schemas, *file.programs)
    for node in nodes:
        yield Definition(node.name_span, file.source, path, node, begins)
    # What a file that has a name of its own uses is not known by that name.
    for use in () if begins else file.uses:
        try:
            target = files.resolve(use.path)
            if target in visited:
                continue
            visited.add(target)
            used = parse_file(Source(str(target), files.read(use.path)))
        except (FileRefused, QpError):
            continue
        own = "" if use.alias is None else f"{use.alias}."
        yield from _declared(used, Files(target.parent, (*files.allowed, *_folder(files))), target, visited, own)


def _folder(files: Files) -> tuple[Path, ...]:
    return (files.folder,) if files.folder is not None else ()


def _file(files: Files, path: str) -> Definition | None:
    try:
        target = files.resolve(path)
    except FileRefused:
        return None
    return Definition(_START, Source(str(target), ""), target) if target.is_file() else None


def _within(span: Span, offset: int) -> bool:
    return span.start <= offset < span.end
