"""Source text to syntax tree, with as many errors in one go as can be told apart.

A statement that does not parse is reported, blanked and left out, and the rest is parsed again. The tree that comes
back carries the diagnostics in `errors`; lowering adds its own and raises them together. A text that is no program
text at all (binary, too large, nested too deep) is refused at once.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedInput

from qpdsl.grammar import ast
from qpdsl.grammar.builders.tree import TreeBuilder
from qpdsl.grammar.diagnostic import Diagnostic, QpError, in_order
from qpdsl.grammar.parse.errors import explain, misspelt_words
from qpdsl.grammar.parse.layout import Statement
from qpdsl.grammar.parse.layout_builder import lay_out
from qpdsl.grammar.parse.pipeline import open_parameters
from qpdsl.grammar.source import MAX_SOURCE_BYTES, Source, Span

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
                tree = _parser().parse(layout.text, start=entry)
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
    return items, in_order([*faults, *builder.faults]), builder.gaps


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
    return Lark(grammar, parser="lalr", lexer="contextual", start=["file", "pipeline"], propagate_positions=True)
