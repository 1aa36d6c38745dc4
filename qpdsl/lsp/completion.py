"""Completion: what may come next at a point of a program, which usually does not parse there.

The words before the point are tokens; the columns there come from checking the text before the statement, with the
open blocks closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lsprotocol import types as lsp

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES, options
from qpdsl.grammar.format.unparse import format_head, format_param_type
from qpdsl.grammar.parse.tokens import Token, scan
from qpdsl.grammar.source import Source
from qpdsl.grammar.words import (
    ACCURACY_FORM,
    AUTO,
    AUTO_FORM,
    BUDGET_FORM,
    BUDGET_UNITS,
    CLAUSE_FORMS,
    DECLARATIONS,
    DRAFTS,
    DRAW_FIGURES,
    EXTRACTORS,
    FAILURE,
    FUNCTIONS,
    LEVELS,
    MODEL_OPTIONS,
    PARAMETER_TYPES,
    SWITCH,
    SYSTEMS,
    TARGETS,
    TYPE_FORMS,
    TYPES,
    UNTIL_FORM,
    VERIFIER_FORMS,
    VERIFIER_KINDS,
    VIAS,
)
from qpdsl.lsp.definitions import declarations
from qpdsl.lsp.document import Document, read

Kind = lsp.CompletionItemKind
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_SEPARATORS = ("{", "|", "}")
_OPERATORS = {"and", "or", "not", "matches"}
_SIGNS = {"+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "(", ","}


def _parts(head: str) -> list[ast.Role]:
    """The parts of the stages that begin with a word."""
    cls = STAGES.get(head)
    return [part for _, part in ast.parts(cls)] if cls is not None else []


def _clauses(head: str) -> list[str]:
    """The words that begin clauses of a stage."""
    found = [part.lead for part in _parts(head) if part.is_clause and part.kind not in ("block", "arms")]
    return ["as", *found] if head == "score" else found


def _is_counted(head: str) -> bool:
    """Whether a number follows the word of a stage."""
    parts = _parts(head)
    return bool(parts) and parts[0].range is not None


def _is_open(head: str, before: str, last: str) -> bool:
    """Whether a width may stand at the point, which a budget may choose."""
    return any(
        part.auto and last == ((part.lead and "=") or head) and part.lead in ("", f"{before}=") for part in _parts(head)
    )


def _chooses(head: str) -> bool:
    return any(part.chooses or part.own or part.reads == "aggregates" for part in _parts(head))


# The words after which a value of a row is read: of clauses, and of stages that begin with one.
_ROW_WORDS = _OPERATORS | {
    part.lead or word
    for word in STAGES
    for number, part in enumerate(_parts(word))
    if part.kind in ("value", "column") and (part.is_clause or (not part.lead and not number and part.range is None))
    if part.chooses or part.kind == "column" or part.is_clause
}


@dataclass(frozen=True)
class _Point:
    """The words of the statement up to the point, without the unfinished one, and the open brackets around it.

    `start` is the offset of the statement.
    """

    words: tuple[Token, ...]
    start: int
    open: str

    @property
    def last(self) -> str:
        return self.words[-1].text if self.words else ""

    @property
    def head(self) -> str:
        return self.words[0].text if self.words else ""


def complete(document: Document, offset: int) -> list[lsp.CompletionItem]:
    """The proposals at a point of the text."""
    text = document.source.text[:offset]
    inside = _inside_string(text)
    if inside is not None:
        return list(_in_string(document, text, inside))
    last = scan(Source("", text), text)[0][-1:]
    if last and last[0].kind == "comment" and last[0].end == len(text):
        return []
    point = _point(text)
    prefix = _up_to(document, point)
    if "{" not in point.open:
        return list(_outside(document, point))
    if point.open.count("{") == 1 and _block_word(text) == "schema":
        return list(_types(document)) if point.last in (":", "[") else []
    return list(_in_stage(document, prefix, point))


def _outside(document: Document, point: _Point) -> Iterator[lsp.CompletionItem]:
    if point.head == "model" and point.last == "=" and point.words[-2].text == "kind":
        yield from (_item(word, Kind.EnumMember) for word in VERIFIER_KINDS)
    elif point.head == "model" and len(point.words) > 3 and point.last != "=":
        present = {token.text for token in point.words[3:]}
        yield from (_item(f"{option}=", Kind.Property) for option in MODEL_OPTIONS if option not in present)
    elif not point.words:
        yield from (_item(word, Kind.Keyword, form) for word, form in DECLARATIONS.items())
    elif point.head == "program":
        if point.last in (":", "["):
            yield from _types(document)
            yield from (_item(name, Kind.TypeParameter) for name in PARAMETER_TYPES if name not in TYPES)
        elif point.last == "->":
            yield from _types(document)
        elif point.last == "within":
            yield from (_item(word, Kind.Keyword) for word in LEVELS)
            yield _item("budget", Kind.Function, BUDGET_FORM)
            yield _item("accuracy", Kind.Function, ACCURACY_FORM)
            yield _item("deadline", Kind.Function, "deadline(2)")
        elif point.last == "or":
            yield from (_item(unit, Kind.Function) for unit in BUDGET_UNITS)
        elif point.last == "like":
            yield from (_item(word, Kind.EnumMember) for word in SYSTEMS)
        elif point.last == "draft":
            yield from _drafts(document)
        elif ")" in [token.text for token in point.words]:
            yield from (
                _item(word, Kind.Keyword, CLAUSE_FORMS.get(word, "")) for word in ("within", "prefer", "draft", "like")
            )


def _drafts(document: Document) -> Iterator[lsp.CompletionItem]:
    yield from _declared(document, ast.Model)
    yield from (_item(word, Kind.Function) for word in DRAFTS)
    yield _item("none", Kind.Keyword)


def _in_stage(document: Document, prefix: Document, point: _Point) -> Iterator[lsp.CompletionItem]:
    last, before = point.last, point.words[-2].text if len(point.words) > 1 else ""
    if not point.words:
        yield from (_item(word, Kind.Keyword, form.usage) for word, form in STAGES.items())
    elif words := _words(point, before):
        yield from (_item(word, Kind.EnumMember) for word in words)
    elif last in ("extract", "let", "into"):
        return
    elif last == "draft":
        yield from _drafts(document)
    elif last == "generate" or (
        last == "(" and before in ("filter", "contrast", "judge", "prob", "likelihood", "compare")
    ):
        yield from _declared(document, ast.Model)
    elif last == "score" and len(point.words) == 1:
        yield from _declared(document, ast.Model)
        yield from (_item(name, Kind.Function, "Python scorer") for name in sorted(document.environment.scorers))
        yield from (_item(word, Kind.Function) for word in ("logprob", *DRAW_FIGURES))
        yield from (_item(name, Kind.Function, form) for name, form in VERIFIER_FORMS.items() if name != "compare")
    elif last == "as" and point.head == "score":
        yield _item("int", Kind.Function, "int(LOW..HIGH)")
    elif last == "as":
        yield from _declared(document, ast.Schema)
        yield from (_item(word, Kind.Function) for word in TARGETS)
        yield _item("bool", Kind.TypeParameter)
    elif last == "via":
        yield from (_item(word, Kind.Function) for word in VIAS)
    elif last == "until" and point.head == "generate":
        yield _item(ast.DrawScore.form, Kind.Function, UNTIL_FORM)
    elif last == "call":
        yield from _declared(document, ast.Program)
    elif last == "tool":
        for name, tool in sorted(document.environment.tools.items()):
            yield _item(name, Kind.Function, tool.description or "tool")
        yield from _row(prefix, point)
    elif point.head == "extract" and last == "=":
        yield from (_item(name, Kind.Function, finds) for name, finds in EXTRACTORS.items())
        yield _item(FAILURE, Kind.Function, "why code in the text fails its tests")
        names = document.environment.extractors
        yield from (_item(name, Kind.Function, "Python extractor") for name in sorted(names))
    elif last in _ROW_WORDS or (last == "=" and _takes_row(point.head, before)) or _reads_row(point):
        if last == "=" and any(part.switch for part in _parts(point.head) if part.lead == f"{before}="):
            yield from (_item(word, Kind.EnumMember) for word in SWITCH)
        yield from _row(prefix, point)
        if last != "vote" and last != "per":
            yield from (_item(name, Kind.Function) for name in FUNCTIONS)
    elif last == "=" or point.open[-1:] in "([" or (_is_counted(last) and len(point.words) == 1):
        yield from (_item(name, Kind.Variable, detail) for name, detail in _params(prefix, point))
        if _is_open(point.head, before, last):
            yield _item(AUTO, Kind.Keyword, AUTO_FORM)
    else:
        form = STAGES.get(point.head)
        present = {token.text for token in point.words}
        for option in options(form) if form else ():
            if option not in present or point.head == "chat":
                yield _item(f"{option}=", Kind.Property)
        for clause in _clauses(point.head):
            if clause not in present:
                yield _item(clause, Kind.Keyword, CLAUSE_FORMS.get(clause, ""))


def _words(point: _Point, before: str) -> tuple[str, ...]:
    """The words of which one stands at the point: behind `option=`, or behind the word of the stage."""
    inside = {"generate": ast.Filter, "score": ast.Equal}.get(point.head)
    parts = [*_parts(point.head), *(part for _, part in (ast.parts(inside) if inside is not None else ()))]
    lead = f"{before}=" if point.last == "=" else "" if len(point.words) == 1 else None
    able = parts[:1] if lead == "" else parts
    return next((part.words for part in able if part.kind == "word" and part.lead == lead), ())


def _takes_row(head: str, option: str) -> bool:
    """Whether what stands behind `option=`, or behind the name of a column and `=`, reads rows."""
    options = [part for part in _parts(head) if part.lead == f"{option}="]
    read = options or [part for part in _parts(head) if part.lead == "="]
    return any(part.reads not in ("parameters", "once") for part in read)


def _reads_row(point: _Point) -> bool:
    """Whether the point is in the middle of an expression that reads rows."""
    return point.last in _SIGNS and (_chooses(point.head) or (point.head == "generate" and point.last == "<"))


def _row(prefix: Document, point: _Point) -> Iterator[lsp.CompletionItem]:
    program = prefix.program_at(point.start)
    if program is None:
        return
    for name, type_ in prefix.columns_before(program, point.start).items():
        yield _item(name, Kind.Field, type_)
    if point.last not in ("vote", "per"):
        yield from (_item(name, Kind.Variable, detail) for name, detail in _params(prefix, point))


def _params(prefix: Document, point: _Point) -> Iterator[tuple[str, str]]:
    program = prefix.program_at(point.start)
    for param in program.params if program else ():
        yield param.name, f"parameter: {format_param_type(param)}"


def _types(document: Document) -> Iterator[lsp.CompletionItem]:
    details: Mapping[str, str] = {**dict.fromkeys(TYPES, ""), **TYPE_FORMS}
    yield from (_item(name, Kind.TypeParameter, form) for name, form in details.items())
    yield from _declared(document, ast.Schema)


def _in_string(document: Document, text: str, start: int) -> Iterator[lsp.CompletionItem]:
    """Ids of models after `model NAME =`, and names after an open brace."""
    line = text[text.rfind("\n", 0, start) + 1 : start].rstrip('"')
    if re.search(r"\bmodel\s+\w+\s*=\s*$", line):
        from qpdsl import zoo

        yield from (_item(model.name, Kind.Module, model.description) for model in zoo.BUILTIN)
    elif re.search(r"(?<!\\)\{\w*$", text[start:]):
        point = _point(text[:start])
        prefix = _up_to(document, point)
        yield from _row(prefix, replace(point, words=()))


def _declared(document: Document, kind: type[ast.Node]) -> Iterator[lsp.CompletionItem]:
    names: set[str] = set()
    for declared in declarations(document):
        node = declared.node
        if not isinstance(node, kind) or not isinstance(node, ast.Model | ast.Schema | ast.Program):
            continue
        name = f"{declared.begins}{node.name}"
        if name in names:
            continue
        names.add(name)
        match node:
            case ast.Model(id=id_):
                yield _item(name, Kind.Module, id_)
            case ast.Schema():
                yield _item(name, Kind.Struct, "schema")
            case ast.Program():
                yield _item(name, Kind.Function, format_head(node))


def _item(label: str, kind: lsp.CompletionItemKind, detail: str = "") -> lsp.CompletionItem:
    return lsp.CompletionItem(label, kind=kind, detail=detail or None)


def _tokens(text: str) -> list[Token]:
    return [token for token in scan(Source("", text), text)[0] if token.kind != "comment"]


def _inside_string(text: str) -> int | None:
    """The offset behind the quote of the string that is open at the end of a text; None where none is open."""
    for token in _tokens(text):
        if token.kind != "string":
            continue
        quote = '"""' if token.text.startswith('"""') else '"'
        closed = re.fullmatch(rf"{quote}(?:[^\\]|\\.)*?{quote}", token.text, re.DOTALL)
        if not closed and (len(quote) == 3 or "\n" not in text[token.start :]):
            return token.start + len(quote)
    return None


def _point(text: str) -> _Point:
    """The statement that a text ends in: a stage, or a declaration."""
    tokens = _tokens(text)
    if tokens and tokens[-1].end == len(text) and tokens[-1].kind == "word":
        tokens.pop()
    brackets: list[str] = []
    words: list[Token] = []
    start = len(text)
    for token in tokens:
        if token.text in _CLOSERS:
            brackets.append(token.text)
        elif token.text in _CLOSERS.values() and brackets:
            brackets.pop()
        ends = token.kind == "newline" and not (brackets and brackets[-1] in "([")
        if ends or token.text in _SEPARATORS:
            words = []
        elif token.kind != "newline":
            words.append(token)
    if words:
        start = words[0].start
    return _Point(tuple(words), start, "".join(brackets))


def _up_to(document: Document, point: _Point) -> Document:
    """The document up to the statement at the point, with the open blocks closed."""
    text = document.source.text[: point.start]
    closers = "".join(_CLOSERS[bracket] for bracket in reversed(_point(text).open))
    return read(Source(document.source.name, f"{text}\n{closers}\n"), document.environment, document.path)


def _block_word(text: str) -> str:
    """The first word of the declaration in which a text ends."""
    depth, word, fresh = 0, "", True
    for token in _tokens(text):
        if depth == 0 and fresh and token.kind == "word":
            word, fresh = token.text, False
        if token.text in _CLOSERS:
            depth += 1
        elif token.text in _CLOSERS.values():
            depth = max(0, depth - 1)
        if depth == 0 and (token.kind == "newline" or token.text == "}"):
            fresh = True
    return word
