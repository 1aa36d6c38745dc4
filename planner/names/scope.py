"""The names that an expression may read at one point of a program, with their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Literal as OneOf

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import COLUMNS, STAGES, Type

if TYPE_CHECKING:
    from qpdsl.planner.names.schemas import Schema


Wanted = OneOf["score", "answer"]
_MAKERS = ("extract", "score", "repeat", "branch", "call", "into")
_MAKES: Mapping[Wanted, type[ast.Stage]] = {"score": ast.Score, "answer": ast.Extract}
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Column:
    """A column, the stage that made it (None where every row has it), and the schema that its text is held to."""

    type: Type
    maker: ast.Stage | None = None
    schema: Schema | None = None


@dataclass(slots=True)
class Scope:
    """`columns` is empty until a context starts. `later` holds, by name, the first stage of all that makes a column.

    `gaps` are the faulty parts that the parser left out: where each starts, and its text.
    """

    params: Mapping[str, ast.Param]
    report: Callable[[Diagnostic], None]
    gaps: tuple[tuple[int, str], ...] = ()
    later: Mapping[str, ast.Stage] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    models: Collection[str] = ()

    def start_context(self) -> None:
        self.columns.update({name: Column(type) for name, type in COLUMNS.items()})  # type: ignore[arg-type]

    def types(self) -> dict[str, str]:
        return {name: column.type for name, column in self.columns.items()}

    def gap_before(self, offset: int, *words: str) -> bool:
        """Whether a part was left out before this point that is no known stage, or holds one of these words."""
        return any(start < offset and _may_hold(text, words) for start, text in self.gaps)

    def error(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> None:
        self.report(Diagnostic(code, message, span, label, **more))

    def column(
        self, name: ast.Name, reader: ast.Stage, *, upto: int | None = None, wants: Wanted | None = None
    ) -> Type:
        """The type of a column or parameter that the stage `reader` reads; reports an unknown one.

        `wants` says which kind of column the place is for.
        """
        if name.id in self.columns:
            return self.columns[name.id].type
        if name.id in self.params:
            return param_type(self.params[name.id])
        if not self.gap_before(name.span.start if upto is None else upto, *_MAKERS, name.id):
            self._unknown_column(name, reader, wants)
        return "unknown"

    def parameter(self, name: ast.Name, place: str) -> Type:
        """The type of a parameter read in `place` (say "`n`"), where columns cannot be read."""
        if name.id in self.params:
            return param_type(self.params[name.id])
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
        fix = _fix(name, _literal(name) or closest(name.id, self.params))
        if name.id in self.later:
            fix = {"secondary": self._later(name.id), "help": f"{place} reads parameters only"}
        message = f"unknown parameter `{name.id}`"
        self.error("QP204", message, name.span, "not declared", notes=(f"parameters: {known}",), **fix)
        return "unknown"

    def _unknown_column(self, name: ast.Name, reader: ast.Stage, wants: Wanted | None) -> None:
        message = f"`{stage_word(reader)}` reads `{name.id}`, but no stage before it makes `{name.id}`"
        near = _literal(name) or closest(name.id, [*self.columns, *self.params])
        secondary: tuple[Label, ...] = ()
        more = _fix(name, near)
        if name.id in self.later:
            secondary, more = self._later(name.id), {}
        elif near is not None:
            secondary = self._made(near)
        else:
            made = (
                [id for id, column in self.columns.items() if isinstance(column.maker, _MAKES[wants])] if wants else []
            )
            if made:
                secondary = self._made(made[-1])
                more = {"help": f"use the {wants} made above", "edit": Edit(name.span, made[-1])}
            elif name.id in self.models:
                more = {"help": f"`{name.id}` is a model: `score {name.id} into NAME` makes a column of its scores"}
            elif name.id == "score" or wants == "score":
                into = "" if name.id == "score" else f" into {name.id}"
                more = {"help": f"make it with `score VERIFIER{into}`"}
            elif wants == "answer":
                more = {"help": f"make it with `extract {name.id} = /regex/`"}
        notes: tuple[str, ...] = (f"columns here: {', '.join(self.columns)}",) if self.columns else ()
        notes += (f"parameters: {', '.join(self.params)}",) if self.params else ()
        self.error("QP203", message, name.span, "unknown column", secondary=secondary, notes=notes, **more)

    def _later(self, id: str) -> tuple[Label, ...]:
        maker = self.later[id]
        return (Label((made_name(maker) or maker).span, f"this stage makes `{id}`, too late"),)

    def _made(self, id: str) -> tuple[Label, ...]:
        maker = self.columns[id].maker if id in self.columns else None
        if maker is None:
            return ()
        named = made_name(maker)
        return (Label(named.span if named else maker.span, f"this stage makes `{id}`"),)


def param_type(param: ast.Param) -> Type:
    """The declared type; "unknown" where there is no such type, which is reported where it is declared."""
    name = param.type.name
    return name if name in ("text", "int", "float", "bool") else "unknown"  # type: ignore[return-value]


def made_name(stage: ast.Stage) -> ast.Name | None:
    """Where a stage spells the name of the column that it makes, if it does."""
    if isinstance(stage, ast.Extract):
        return stage.column
    return stage.into if isinstance(stage, (ast.Score, ast.Generate, ast.Call)) else None


def stage_word(stage: ast.Stage) -> str:
    return type(stage).__name__.lower()


def word_span(stage: ast.Stage) -> Span:
    """The span of the stage's first word."""
    return Span(stage.span.start, stage.span.start + len(stage_word(stage)))


def _literal(name: ast.Name) -> str | None:
    """`true`, `false` or `none`, where a name is one of them in other letters."""
    return name.id.lower() if name.id.lower() in ("true", "false", "none") else None


def _may_hold(text: str, words: tuple[str, ...]) -> bool:
    """A part that begins with no word, or with one that is no stage, may have been meant as any."""
    found = _WORD.findall(text)
    head = _WORD.match(text)
    return head is None or head[0] not in STAGES or not set(found).isdisjoint(words)


def _fix(name: ast.Name, near: str | None) -> dict[str, Any]:
    return {"help": f"did you mean `{near}`?", "edit": Edit(name.span, near)} if near else {}
