"""Source text to syntax tree, with as many errors in one go as can be told apart.

A statement that does not parse is reported, blanked and left out, and the rest is parsed again. The tree that comes
back carries the diagnostics in `errors`; lowering adds its own and raises them together. A text that is no program
text at all (binary, too large, nested too deep) is refused at once.

The parameters of a `-e` pipeline: the names that it reads and no stage makes, but for slips of a column's name.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from threading import Lock
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedInput

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import children, column_makers, walk, walk_stages
from qpdsl.grammar.builders.tree import TreeBuilder
from qpdsl.grammar.diagnostic import Diagnostic, QpError, in_order
from qpdsl.grammar.parse.errors import explain, misspelt_words
from qpdsl.grammar.parse.layout import Statement, lay_out
from qpdsl.grammar.source import MAX_SOURCE_BYTES, Source, Span
from qpdsl.grammar.words import COLUMNS

_OF_TEXT = ("len", "lower", "upper", "strip", "contains", "lines", "split", "replace")
_OF_ANY = ("count", "first", "last", "list", "int", "float", "text", "join", "sort")
# A name that is so much like a column's, where columns are read, is a slip of it: `scor`, but not `min_score`.
_SLIP = 0.8
# What stands for the type `[text]`.
_TEXTS = "[text]"
# A name where it is read, and the type that its place asks for; None where any will do.
_Use = tuple[ast.Name, str | None]


def open_parameters(stages: tuple[ast.Stage, ...]) -> tuple[ast.Param, ...]:
    """One parameter per open name in order of first use, of the first type that a use asks for, else text."""
    columns = {*COLUMNS, *(column for column, _ in column_makers(stages))}
    uses: dict[str, list[_Use]] = {}
    of_rows: dict[str, bool] = {}
    keys: set[str] = set()
    for stage in walk_stages(stages):
        for value, part, owner in ast.values(stage):
            if isinstance(value, ast.JsonPath):
                continue
            for name, type_ in _uses(value, part.type_of(owner)):
                if name.id not in columns and name.id not in part.own:
                    uses.setdefault(name.id, []).append((name, type_))
                    of_rows[name.id] = of_rows.get(name.id, True) and part.chooses
            if part.chooses:
                keys.update(_keys(value, part))
    params = []
    for id, id_uses in uses.items():
        if id in keys or (of_rows[id] and _is_slip(id, columns)):
            continue
        span = id_uses[0][0].span
        named = next((type_ for _, type_ in id_uses if type_), "text")
        text = ast.TypeRef("text", span=span)
        listed = named == _TEXTS
        type_of = ast.ListType(text, span=span) if listed else ast.TypeRef(named, span=span)
        params.append(ast.Param(id, type_of, span=span, name_span=span))
    return tuple(params)


def _keys(value: ast.Expr, part: ast.Role) -> Iterator[str]:
    """The names by which rows are told apart: a parameter is the same for all of them."""
    if part.lead == "by" and isinstance(value, ast.Name):
        yield value.id
    for node in walk(value):
        if isinstance(node, ast.Apply) and node.per is not None:
            yield node.per.id


def _is_slip(id: str, columns: Collection[str]) -> bool:
    return any(SequenceMatcher(None, column, id.lower()).ratio() >= _SLIP for column in columns)


def _uses(expr: ast.Node, type_: str | None) -> Iterator[_Use]:
    """The names in an expression whose value should be of a type."""
    match expr:
        case ast.Name():
            yield expr, type_
        case ast.Unary(op=op, operand=operand):
            yield from _uses(operand, "bool" if op == "not" else _number(type_))
        case ast.Binary(op=op, left=left, right=right):
            operand_type = _operand_type(op, left, right, type_)
            yield from _uses(left, operand_type)
            yield from _uses(right, operand_type)
        case ast.Matches(subject=subject):
            yield from _uses(subject, "text")
        case ast.Apply(function=function, args=args, per=per):
            for index, arg in enumerate(args):
                yield from _uses(arg, _argument_type(function, index, type_))
            if per is not None:
                yield per, None
        case _:  # what it holds may be of any type
            for part in children(expr):
                yield from _uses(part, None)


def _argument_type(function: str, index: int, type_: str | None) -> str | None:
    """The type that an argument of a function should have, where the call should be of `type_`."""
    if function == "if":
        return type_ if index else "bool"
    if function in ("all", "any"):
        return "bool"
    if function in _OF_TEXT:
        return "text"
    return None if function in _OF_ANY else _number(type_)


def _operand_type(op: str, left: ast.Expr, right: ast.Expr, type_: str | None) -> str | None:
    if op in ("and", "or"):
        return "bool"
    if op == "in":
        return None
    if op in ("==", "!="):
        numeric = any(isinstance(side, ast.Literal) and type(side.value) in (int, float) for side in (left, right))
        return "float" if numeric else None
    return _number(type_)


def _number(type_: str | None) -> str:
    return "int" if type_ == "int" else "float"


MAX_ERRORS = 20
# How many characters are read again to find further errors, so that a large source is read only a few times.
_REREAD = 4_000_000
BUILT_IN_MODELS = {"llm": "zoo/counting", "prm": "zoo/counting-prm", "slm": "zoo/counting-mini"}
_BINARY = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]|\r(?!\n)")
_LOCK = Lock()


def parse_file(source: Source) -> ast.File:
    """Parses a `.qp` file. What is wrong with it is in the file's `errors`, which `lower` raises with its own."""
    items, errors, gaps = _parse(source, "file")
    models = tuple(item for item in items if isinstance(item, ast.Model))
    programs = tuple(item for item in items if isinstance(item, ast.Program))
    if not programs and not errors:
        start = Span(0, 0)
        errors = (Diagnostic("QP120", "no program in this file", start, notes=("form: program NAME(…) { … }",)),)
    schemas = tuple(item for item in items if isinstance(item, ast.Schema))
    uses = tuple(item for item in items if isinstance(item, ast.Use))
    return ast.File(source, models, programs, schemas, uses, not gaps, errors, gaps, span=Span(0, len(source.text)))


def parse_pipeline(source: Source, models: Mapping[str, str] | None = None) -> ast.File:
    """Parses the stages given to `-e` as a program `main` over the built-in models, and over `models` (name → id).

    The names that no stage makes are its parameters, typed by where they are used.
    """
    stages, errors, gaps = _parse(source, "pipeline")
    span = Span(0, len(source.text))
    if not stages and not errors:
        errors = (Diagnostic("QP121", "expected a stage, found nothing", Span(0, 0)),)
    ids = {**BUILT_IN_MODELS, **(models or {})}
    declared = tuple(ast.Model(name, id, span=span, name_span=span) for name, id in ids.items())
    program = ast.Program("main", open_parameters(stages), None, stages, span=span, name_span=Span(0, 0))
    return ast.File(source, declared, (program,), complete=not gaps, errors=errors, gaps=gaps, span=span)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Turns the cycle collector off, which walks a growing tree again and again.

    That takes half the time of a large source, and what is made here has few cycles.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@gc_disabled()
def _parse(source: Source, entry: str) -> tuple[tuple[Any, ...], tuple[Diagnostic, ...], tuple[Span, ...]]:
    """What the rule `entry` of the grammar makes of the source, the faults in it, and what was left out."""
    _refuse(source)
    text = source.text
    faults: list[Diagnostic] = []
    headless: set[int] = set()
    gaps: list[Span] = []
    reread = 0
    while True:
        layout = lay_out(source, text, pipeline=entry == "pipeline", headless=headless)
        # Each with an offset in the statement that is to blame.
        new_faults = [(fault, fault.span.start) for fault in layout.faults]
        if not new_faults:
            try:
                tree = _parser().parse(layout.parsed, start=entry)
                break
            except UnexpectedInput as error:
                new_faults = [explain(error, layout)]
        faults += [fault for fault, _ in new_faults]
        text, before = layout.text, text
        blanked: Statement | None = None
        for fault, offset in new_faults:
            if fault.code == "QP113":
                text = f"{text[:offset]}\n{text[offset + 1 :]}"
                continue
            statement = layout.statement_at(offset)
            if statement is not None and statement is not blanked:
                blanked = statement
                for part in (statement, *layout.elses_after(statement)):
                    headless.update(layout.braces_after(part))
                    gaps.append(part.span)
                    text = replace(layout, text=text).without(part)
        reread += len(text)
        if layout.broken:
            return (), in_order([*faults, *misspelt_words(layout)]), (Span(0, len(text)),)
        if text == before or len(faults) >= MAX_ERRORS or reread > _REREAD:
            return (), in_order(faults), (Span(0, len(text)),)
    builder = TreeBuilder(headless, gaps)
    items = builder.build(tree)
    return items, in_order([*faults, *builder.diagnostics]), tuple(builder.gaps)


def _refuse(source: Source) -> None:
    size = len(source.text.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        message = f"the source takes {size:,} bytes, the limit is {MAX_SOURCE_BYTES:,}"
        raise QpError([Diagnostic("QP102", message, Span(0, 0))], source)
    match = _BINARY.search(source.text)
    if match:
        message = f"this is not program text: it holds the character U+{ord(match[0]):04X}"
        notes = ("a `.qp` file is UTF-8 text",)
        raise QpError([Diagnostic("QP101", message, Span(*match.span()), notes=notes)], source)


def _parser() -> Lark:
    """The parser, built once, when it is first wanted."""
    with _LOCK:
        return _build()


@cache
def _build() -> Lark:
    grammar = Path(__file__).parents[1].joinpath("qp.lark").read_text("utf-8")
    # Its tables lie beside this file's compiled code, and are as trusted as that.
    compiled = Path(cache_from_source(__file__))
    tables = False if sys.dont_write_bytecode else str(compiled.with_name("qp.lark.tables"))
    return Lark(
        grammar,
        parser="lalr",
        lexer="contextual",
        start=["file", "pipeline"],
        propagate_positions=True,
        cache=tables,
    )
