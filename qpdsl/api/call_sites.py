"""Where in a Python file something is written: call sites as spans of the file's text.

For every instruction Python keeps the range of source that it came from. The range of a frame's current instruction is
looked up in the file's syntax tree, which says where each argument of a call is.
"""

from __future__ import annotations

import ast as python
import linecache
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.grammar.source import Source, Span

_Range = tuple[int, int, int, int]


@dataclass(frozen=True)
class PythonFile:
    """A file of Python code; `filename` is Python's own name for it, which may be that of a notebook's cell."""

    filename: str
    source: Source

    @classmethod
    def of(cls, code: CodeType) -> PythonFile:
        """The file that code comes from. Text that cannot be read stands as empty lines, so that line numbers hold."""
        lines = linecache.getlines(code.co_filename)
        last = max(line for *_, line in code.co_lines() if line is not None)
        text = "".join(lines) or "\n" * last
        return cls(code.co_filename, Source(_shown(code.co_filename), text))

    @property
    def folder(self) -> Path:
        """Where the program's own files are; the current folder for code that is in no file."""
        path = Path(self.filename)
        return path.resolve().parent if path.is_file() else Path.cwd()

    def here(self) -> Site:
        """The innermost call in this file that is running now."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.filename:
            frame = frame.f_back
        return Site(self, NOWHERE, None, None) if frame is None else self._site(frame)

    def function(self, code: CodeType) -> python.FunctionDef | python.AsyncFunctionDef | None:
        """The definition that code comes from, None where the text cannot be read."""
        for node in python.walk(self._tree):
            if isinstance(node, python.FunctionDef | python.AsyncFunctionDef) and node.name == code.co_name:
                first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
                if first == code.co_firstlineno:
                    return node
        return None

    def span(self, node: python.AST | None) -> Span:
        place = None if node is None else _range(node)
        return NOWHERE if place is None else self._span(place)

    def _site(self, frame: FrameType) -> Site:
        positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
        if positions is None or None in positions or not self._nodes:
            return Site(self, self._line(frame.f_lineno), None, frame)
        line, end_line, column, end_column = positions
        place = (line or 1, column or 0, end_line or 1, end_column or 0)
        return Site(self, self._span(place), self._nodes.get(place), frame)

    def _line(self, number: int) -> Span:
        text = self.source.line(number) if self.source.text else ""
        start = self._offset(number, 0)
        return Span(start + len(text) - len(text.lstrip()), start + len(text))

    def _span(self, place: _Range) -> Span:
        return Span(self._offset(*place[:2]), self._offset(*place[2:]))

    def _offset(self, line: int, column: int) -> int:
        """The character offset of Python's line and column, which it counts in bytes."""
        if line > len(self._starts):
            return len(self.source.text)
        start = self._starts[line - 1]
        text = self.source.text[start : start + column]
        return start + (column if text.isascii() else len(text.encode()[:column].decode(errors="ignore")))

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(index + 1 for index, char in enumerate(self.source.text) if char == "\n")]

    @cached_property
    def _tree(self) -> python.Module:
        try:
            return python.parse(self.source.text)
        except SyntaxError:
            return python.Module([], [])

    @cached_property
    def _nodes(self) -> dict[_Range, python.expr]:
        """The expressions of the file by their place; of several in one place, the outermost."""
        nodes: dict[_Range, python.expr] = {}
        for node in python.walk(self._tree):
            place = _range(node)
            if isinstance(node, python.expr) and place is not None:
                nodes.setdefault(place, node)
        return nodes


@dataclass(frozen=True)
class Site:
    """A place in a file, and the expression that stands there, None where it is not known; the frame that runs it."""

    file: PythonFile
    whole: Span
    node: python.expr | None
    frame: FrameType | None

    @property
    def span(self) -> Span:
        """The place, but for what stands before a method's name: `rows.keep(…)` from `keep` on."""
        node = self.node
        if isinstance(node, python.Call) and isinstance(node.func, python.Attribute):
            return replace(self.whole, start=self.file.span(node.func).end - len(node.func.attr))
        if isinstance(node, python.Attribute):
            return replace(self.whole, start=self.whole.end - len(node.attr))
        return self.whole

    def argument(self, name: str | None = None, position: int | None = None) -> Span:
        """Where a call's argument stands; the whole place where that is not known."""
        node = self.node
        if not isinstance(node, python.Call):
            return self.span
        for keyword in node.keywords:
            if name is not None and keyword.arg == name:
                return self.file.span(keyword.value)
        if position is not None and position < len(node.args):
            return self.file.span(node.args[position])
        return self.span

    @property
    def head(self) -> Span:
        """The name of the function or method that is called."""
        name = self.node.func if isinstance(self.node, python.Call) else None
        return self.span if name is None else Span(self.span.start, self.file.span(name).end)

    def operands(self) -> tuple[Span, Span] | None:
        """Where the two operands of an operator stand."""
        match self.node:
            case python.BinOp(left=left, right=right) | python.Compare(left=left, comparators=[right]):
                return self.file.span(left), self.file.span(right)
        return None

    def operand(self) -> Span | None:
        """Where the one operand of an operator stands."""
        return self.file.span(self.node.operand) if isinstance(self.node, python.UnaryOp) else None

    def inside(self, span: Span, text: str) -> Span | None:
        """Where `text` stands between the quotes of a literal at `span`, None where it is not spelt out there."""
        start, end = span.start, span.end
        at = self.file.source.text.find(text, start, end) if text else -1
        quotes = self.file.source.text[start:at].lstrip("rRuU") if at >= 0 else ""
        closed = self.file.source.text[at + len(text) : end]
        return Span(at, at + len(text)) if quotes in ('"', "'", '"""', "'''") and closed == quotes else None


def _range(node: python.AST) -> _Range | None:
    line, end_line = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if line is None or end_line is None:
        return None
    return line, getattr(node, "col_offset", 0), end_line, getattr(node, "end_col_offset", 0)


def _shown(filename: str) -> str:
    """A path from the current folder where the file is under it."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
