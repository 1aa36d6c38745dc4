"""The program that is being composed: what the function under `@qp.program` has added to it so far."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.api.call_sites import PythonFile, Site
from qpdsl.api.syntax_trees import placed
from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.literals import regex
from qpdsl.grammar.source import MAX_SOURCE_BYTES, Span
from qpdsl.grammar.words import RESERVED

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.functions import PythonFunction

# A character for private use, which no text that people write contains.
_MARK = "\uf5b0"
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)
_current: ContextVar[Composition | None] = ContextVar("composition", default=None)


@dataclass(eq=False)
class Composition:
    """`program` is what it is called; `blocks` holds the open blocks' stages, the program's own first.

    `texts` are the files that are in no folder; `faults` are errors after which the rest can still be checked;
    `unopened` are blocks that no `with` has opened. `represented` holds what `repr` made of values of the program.
    `model_params` are the parameters that are models.
    """

    file: PythonFile
    program: str = ""
    blocks: list[list[ast.Stage]] = field(default_factory=lambda: [[]])
    models: dict[str, ast.Model] = field(default_factory=dict)
    schemas: dict[str, ast.Schema] = field(default_factory=dict)
    programs: dict[str, ast.Program] = field(default_factory=dict)
    uses: list[ast.Use] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    functions: dict[str, PythonFunction] = field(default_factory=dict)
    faults: list[Diagnostic] = field(default_factory=list)
    unopened: list[tuple[str, Span]] = field(default_factory=list)
    represented: set[str] = field(default_factory=set)
    model_params: dict[str, object] = field(default_factory=dict)
    _marks: list[ast.Name | ast.Path] = field(default_factory=list)
    _nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    def add(self, stage: ast.Stage) -> None:
        self.blocks[-1].append(stage)

    def refuse(self, code: str, message: str, span: Span | None = None, *, help: str | None = None) -> QpError:
        """The error that ends the composition, at `span` or else where the function's code is running."""
        at = self.file.here().whole if span is None else span
        return QpError([*self.faults, Diagnostic(code, message, at, help=help)], self.file.source)

    def calls_itself(self, span: Span) -> QpError:
        """The error of a program that names itself, which it can only do with a bound."""
        message = f"a program cannot call itself without end: `{self.program}` → `{self.program}`"
        help = 'say how deep it goes, as in `rows.call_into("result", qp.itself(depth=2), part)`'
        return self.refuse("QP224", message, span, help=help)

    def name(self, text: object, span: Span, what: str) -> str:
        """A name that the language allows; `what` says in messages what it names. Raises QpError."""
        if not isinstance(text, str):
            raise self.refuse("QP502", f"{what} is a name, not {shown(text)}", span)
        if text in RESERVED:
            raise self.refuse("QP114", f"`{text}` is a reserved word and cannot be {what}", span)
        if not _WORD.fullmatch(text):
            message = f"{what} is letters, digits and `_`, not {shown(text)}"
            raise self.refuse("QP502", message, span)
        return text

    def regex(self, pattern: str, site: Site, span: Span) -> ast.Regex:
        """A regex as the language spells it. A fault is marked inside it, where the regex is a literal in the file."""
        text = self.plain(pattern, span, "a regex")
        inside = site.inside(span, text)
        fault = regex.check(text, (inside or span).start)
        if fault is not None:
            self.faults.append(fault if inside else replace(fault, span=span, edit=None))
        return ast.Regex(_SLASH.sub(_escaped, text), span=span)

    def plain(self, text: object, span: Span, what: str) -> str:
        """A text without a parameter in it."""
        if not isinstance(text, str):
            raise self.refuse("QP502", f"{what} is a plain text, not {shown(text)}", span)
        if _MARK in text:
            raise self.refuse("QP123", f"{what} is a plain string, without a parameter in it", span)
        self._whole(text, span)
        return text

    def _whole(self, text: str, span: Span) -> None:
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise self.refuse("QP502", "this text holds half of a character", span)

    def mark(self, node: ast.Expr) -> str:
        """Characters that stand for a name in a Python string, until `template` turns the string into a template."""
        if not isinstance(node, ast.Name | ast.Path):
            message = "only a parameter or a column, or a part of one, can stand in a text"
            raise self.refuse("QP502", message, help='work it out before: `m = qp.let("m", …)`, then `{m}`')
        self._marks.append(node)
        return f"{_MARK}{self._nonce}:{len(self._marks) - 1}{_MARK}"

    def template(self, text: str, span: Span) -> ast.Template:
        """A Python string as a template of the language, with names in the place of marks."""
        self._whole(text, span)
        parts: list[str | ast.Name | ast.Path] = []
        for index, piece in enumerate(re.split(f"{_MARK}{self._nonce}:([0-9]+){_MARK}", text)):
            if index % 2:
                parts.append(placed(self._marks[int(piece)], span))
            elif _MARK in piece:
                message = "this text was changed after a parameter was put into it"
                raise self.refuse("QP502", message, span, help="put parameters in last")
            elif piece:
                self._refuse_representation(piece, span)
                parts.append(piece)
        return ast.Template(tuple(parts), span=span)

    def _refuse_representation(self, text: str, span: Span) -> None:
        """`f"{q!r}"` would put what `q` is called into the text, and not its value. Raises QpError."""
        for shown in self.represented:
            if shown in text:
                message = f"this text holds the name of {shown}, and not its value"
                help = "leave `!r` and `repr` out; `{name}` in an f-string puts the value in"
                raise self.refuse("QP502", message, span, help=help)

    def file_of(self, kind: str, ending: str, text: str) -> str:
        """Keeps the text of a file in memory, and returns the file's name. Equal texts have equal names."""
        path = f"{kind}-{blake2b(text.encode(), digest_size=4).hexdigest()}.{ending}"
        self.texts[path] = text
        return path

    @contextmanager
    def active(self) -> Iterator[None]:
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


@dataclass(frozen=True)
class PythonFiles(Files):
    """The files of a program written in Python: `texts` are in memory only, all others are read from disk.

    Every file may be read, since Python code can read them all anyway.
    """

    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def beside(cls, folder: Path, texts: Mapping[str, str]) -> PythonFiles:
        return cls(folder, (Path(folder.anchor),), texts=texts)

    def read(self, path: str, most: int = MAX_SOURCE_BYTES) -> str:
        return self.texts[path] if path in self.texts else super().read(path, most)


def current() -> Composition | None:
    """The program that is being composed, None outside a function under `@qp.program`."""
    return _current.get()


def needed(word: str) -> Composition:
    """The program that is being composed; RuntimeError where there is none."""
    composition = current()
    if composition is None:
        raise RuntimeError(f"`{word}` makes a part of a program: call it in a function under `@qp.program`")
    return composition


def misuse(code: str, message: str, help: str | None = None, span: Span | None = None) -> Exception:
    """As `Composition.refuse`, for the program that is being composed; a TypeError where there is none."""
    composition = current()
    if composition is None:
        return TypeError(f"{message}; {help}" if help else message)
    return composition.refuse(code, message, span, help=help)


def shown(value: object) -> str:
    """A Python value in a message."""
    text = repr(value)
    short = text if len(text) <= 40 else f"{text[:39]}…"
    return f"`{short}`" if _MARK not in text else "a text with a parameter in it"


def _escaped(match: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(match[0], match[0])
