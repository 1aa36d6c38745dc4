"""`generate … as`: what the output is held to, compiled."""

from __future__ import annotations

import json
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.files import FileRefused
from qpdsl.planner.guidance import refusal
from qpdsl.planner.names import suggestion
from qpdsl.planner.ops import Constraint
from qpdsl.planner.schemas import Schema
from qpdsl.planner.walk import Walk


def constraint_of(walk: Walk, target: ast.Target) -> tuple[Constraint | None, Schema | None]:
    """The constraint, and the schema where it is one; None where there is an error, which is reported."""
    match target:
        case ast.SchemaTarget():
            schema = _schema(walk, target)
            return (Constraint("json_schema", schema.source, target.name), schema) if schema else (None, None)
        case ast.Regex(pattern=pattern):
            return _compiled(walk, Constraint("regex", pattern, f"/{pattern}/"), target, "this regex"), None
        case ast.ChoiceTarget(options=options):
            return _choice(walk, target, options), None
        case ast.GrammarTarget():
            return _grammar(walk, target), None


def _schema(walk: Walk, target: ast.SchemaTarget) -> Schema | None:
    schemas = walk.module.schemas
    if target.name in schemas:
        return schemas.get(target.name)
    if "schema" not in walk.module.missing:
        names = schemas.names()
        notes: tuple[str, ...] = (f"schemas: {', '.join(names)}",) if names else ("the file declares no schema",)
        notes += ('other forms: `as /regex/`, `as choice("a", "b")`, `as grammar("file.lark")`',)
        fix = suggestion(target.name, target.span, names)
        fix = fix or {"help": f"declare it above the program: `schema {target.name} {{ … }}`"}
        walk.scope.error("QP222", f"unknown schema `{target.name}`", target.span, "not declared", notes=notes, **fix)
    return None


def _choice(walk: Walk, target: ast.ChoiceTarget, options: tuple[str, ...]) -> Constraint | None:
    if "" in options:
        walk.scope.error("QP308", "a choice cannot be empty", target.span, "one of these is")
        return None
    shown = ", ".join(json.dumps(option, ensure_ascii=False) for option in options)
    constraint = Constraint("choice", json.dumps(options, ensure_ascii=False), f"choice({shown})")
    return _compiled(walk, constraint, target, "these choices")


def _grammar(walk: Walk, target: ast.GrammarTarget) -> Constraint | None:
    try:
        text = walk.module.files.read(target.path)
    except FileRefused as why:
        walk.scope.error("QP228", str(why), target.span, "cannot be read")
        return None
    constraint = Constraint("grammar", text, f'grammar("{target.path}")')
    return _compiled(walk, constraint, target, f"the grammar `{target.path}`")


def _compiled(walk: Walk, constraint: Constraint, target: ast.Target, what: str) -> Constraint | None:
    why_not = refusal(constraint.kind, constraint.source)
    if why_not is None:
        return constraint
    found = Diagnostic("QP307", f"no output can be held to {what}", target.span, "llguidance refuses it")
    walk.scope.report(replace(found, notes=(why_not,)))
    return None
