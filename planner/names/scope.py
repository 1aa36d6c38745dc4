"""The scope at one point of a program: the columns and parameters that an expression may read, with their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.ast.walk import column_name
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, meant
from qpdsl.grammar.words import COLUMNS, Type

if TYPE_CHECKING:
    from qpdsl.planner.names.schemas import CompiledSchema

Role = Literal["score", "answer"]
# The words of stages that may make a column, for a part that did not parse.
_MAKER_WORDS = ("extract", "score", "let", "join", "repeat", "branch", "if", "each", "call", "into")
_ROLE_STAGES: Mapping[Role, type[ast.Stage]] = {"score": ast.Score, "answer": ast.Extract}
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column in scope: its type, the stage that makes it (None where every row has it), and its text's schema.

    `outdated` is the stage since which a score is that of an earlier text.
    """

    type: Type
    maker: ast.Stage | None = None
    schema: CompiledSchema | None = None
    outdated: ast.Stage | None = None


@dataclass(slots=True)
class Scope:
    """`columns` holds those of calls alone until a context starts. `makers` holds, by column, the first stage that
    makes it.

    `gaps` are the faulty parts that the parser left out: the offset where each starts, and its text. `param_types` are
    the types of the parameters' values. A parameter that is a model is in neither.
    """

    params: Mapping[str, ast.Param]
    report: Callable[[Diagnostic], None]
    gaps: tuple[tuple[int, str], ...] = ()
    makers: Mapping[str, ast.Stage] = field(default_factory=dict)
    columns: dict[str, BoundColumn] = field(default_factory=dict)
    models: Collection[str] = ()
    param_types: Mapping[str, Type] = field(default_factory=dict)

    def start_context(self) -> None:
        self.columns.update({name: BoundColumn(type) for name, type in COLUMNS.items()})

    def types(self) -> dict[str, str]:
        return {name: column.type for name, column in self.columns.items()}

    def gap_before(self, offset: int, *words: str) -> bool:
        """Whether a part before this point was left out that is no known stage, or holds one of these words."""
        return any(start < offset and _may_hold(text, words) for start, text in self.gaps)

    def error(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> None:
        self.report(Diagnostic(code, message, span, label, **more))

    def column(self, name: ast.Name, reader: ast.Stage, *, upto: int | None = None, role: Role | None = None) -> Type:
        """The type of a column or parameter that the stage `reader` reads; reports an unknown one.

        `role` is the kind of column that is expected. Gaps count up to the offset `upto`, by default up to the name.
        """
        if name.id in self.columns:
            self.warn_outdated(name, reader, self.columns[name.id])
            return self.columns[name.id].type
        if name.id in self.params:
            return self.param_type(name.id)
        if not self.gap_before(name.span.start if upto is None else upto, *_MAKER_WORDS, name.id):
            self._unknown_column(name, reader, role)
        return "unknown"

    def param_type(self, name: str) -> Type:
        """The declared type; "unknown" where there is no such type, which is reported at the declaration."""
        return self.param_types.get(name, "unknown")

    def warn_outdated(self, name: ast.Name, reader: ast.Stage, column: BoundColumn) -> None:
        """Warns of a score that is read after the text has gone on."""
        if column.outdated is None or column.maker is None:
            return
        message = f"`{reader.word}` reads `{name.id}`, which is the score of an earlier text"
        why = (
            Label(word_span(column.maker), "scored here"),
            Label(word_span(column.outdated), "here the text goes on"),
        )
        help = "score again after it; where the earlier score is meant, give it a name: `score … into NAME`"
        self.report(Diagnostic("QP265", message, name.span, "outdated", why, help=help, severity="warning"))

    def parameter(self, name: ast.Name, place: str) -> Type:
        """The type of a parameter that is read in `place` (such as "`n`"), where columns cannot be read."""
        if name.id in self.params:
            return self.param_type(name.id)
        known = ", ".join(self.params) or "none"
        if name.id in self.columns:
            message = f"{place} reads the column `{name.id}`, but it can read parameters only"
            notes = ("it is the same for all rows", f"parameters: {known}")
            self.error("QP210", message, name.span, "a column", notes=notes)
            return "unknown"
        if name.id in COLUMNS:
            message = f"{place} reads the column `{name.id}`, but there are no rows before the first context"
            self.error("QP210", message, name.span, "a column", notes=(f"parameters: {known}",))
            return "unknown"
        fix = meant(_literal(name) or closest(name.id, self.params), name.span)
        if name.id.lower() == "none":
            fix = {"help": "leave the option out"}
        if name.id in self.makers:
            fix = {"secondary": self._later_maker(name.id), "help": f"{place} reads parameters only"}
        message = f"unknown parameter `{name.id}`"
        self.error("QP204", message, name.span, "not declared", notes=(f"parameters: {known}",), **fix)
        return "unknown"

    def _unknown_column(self, name: ast.Name, reader: ast.Stage, role: Role | None) -> None:
        message = f"`{reader.word}` reads `{name.id}`, but no stage before it makes `{name.id}`"
        near = _literal(name) or closest(name.id, [*self.columns, *self.params])
        secondary: tuple[Label, ...] = ()
        more = meant(near, name.span)
        if name.id in self.makers:
            secondary, more = self._later_maker(name.id), {}
        elif near is not None:
            secondary = self._earlier_maker(near)
        elif fitting := self._columns_for(role):
            secondary = self._earlier_maker(fitting[-1])
            more = {"help": f"use the {role} made above", "edit": Edit(name.span, fitting[-1])}
        elif name.id in self.models:
            more = {"help": f"`{name.id}` is a model: `score {name.id} into NAME` makes a column of its scores"}
        elif name.id == "score" or role == "score":
            into = "" if name.id == "score" else f" into {name.id}"
            more = {"help": f"make it with `score VERIFIER{into}`"}
        elif role == "answer":
            more = {"help": f"make it with `extract {name.id} = /regex/`"}
        notes: tuple[str, ...] = (f"columns here: {', '.join(self.columns)}",) if self.columns else ()
        notes += (f"parameters: {', '.join(self.params)}",) if self.params else ()
        self.error("QP203", message, name.span, "unknown column", secondary=secondary, notes=notes, **more)

    def _columns_for(self, role: Role | None) -> list[str]:
        if role is None:
            return []
        return [id for id, column in self.columns.items() if isinstance(column.maker, _ROLE_STAGES[role])]

    def _later_maker(self, id: str) -> tuple[Label, ...]:
        maker = self.makers[id]
        return (Label((column_name(maker) or maker).span, f"this stage makes `{id}`, too late"),)

    def _earlier_maker(self, id: str) -> tuple[Label, ...]:
        maker = self.columns[id].maker if id in self.columns else None
        if maker is None:
            return ()
        return (Label((column_name(maker) or maker).span, f"this stage makes `{id}`"),)


def word_span(stage: ast.Stage) -> Span:
    """The span of the stage's first word; of a called program's stage the span of that program's name in the call."""
    return Span(stage.span.start, min(stage.span.start + len(stage.word), stage.span.end))


def _literal(name: ast.Name) -> str | None:
    """`true`, `false` or `none`, where a name is one of them in another case."""
    return name.id.lower() if name.id.lower() in ("true", "false", "none") else None


def _may_hold(text: str, words: tuple[str, ...]) -> bool:
    """A part that begins with no word, or with a word that is no stage, may have been meant as any stage."""
    head = _WORD.match(text)
    return head is None or head[0] not in STAGES or not set(_WORD.findall(text)).isdisjoint(words)
