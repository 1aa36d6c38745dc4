"""`score` and `extract`: the stages that add a column to each row."""

from __future__ import annotations

from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.format.unparse import format_pattern
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import Type
from qpdsl.planner.names.json_schema import NothingThere, type_at
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.names.types import reader
from qpdsl.planner.names.unknown import suggestion, unknown_verifier
from qpdsl.planner.names.walk import Walk
from qpdsl.planner.plan import ops


def score(walk: Walk, stage: ast.Score, number: int) -> ops.Operator:
    walk.needs_rows(stage)
    op = _scored(walk, stage, stage.into.id if stage.into else "score", number)
    walk.make(stage, stage.into or ast.Name("score", span=word_span(stage)), "float")
    walk.score_column = stage.into.id if stage.into else "score"
    return op


def _scored(walk: Walk, stage: ast.Score, into: str, number: int) -> ops.Operator:
    verifier, span = stage.verifier, stage.span
    if isinstance(verifier, ast.Judge):
        model = walk.model(verifier.model)
        reader(walk.scope, stage, "parameters", "the rubric").type(verifier.rubric)
        _nothing_to_reduce(walk, stage, "a judge gives one number for a row")
        return ops.Judge(model, verifier.rubric, into, stage=number, span=span)
    name, scorers, models = verifier.name, walk.environment.scorers, walk.module.models
    if verifier.quoted or name in models:
        kind = None if verifier.quoted else walk.module.kinds.get(name)
        raw = walk.calls[-1][1].like is not None
        return ops.Score(walk.model(verifier), stage.reduce, into, kind, raw, stage=number, span=span)
    if name == "logprob":
        if stage.reduce not in ("last", "sum", "mean"):
            message = f"`logprob` has no `{stage.reduce}`: it is one number for the whole text"
            walk.scope.error("QP225", message, span, "cannot be reduced so", help="write `reduce=mean` or `reduce=sum`")
        return ops.LogProb("mean" if stage.reduce == "mean" else "sum", into, stage=number, span=span)
    if name in scorers:
        _nothing_to_reduce(walk, stage, f"`{name}` gives one number for a row")
    elif "model" not in walk.module.missing:
        walk.scope.report(unknown_verifier(verifier, models, scorers))
    return ops.PythonScore(name, into, stage=number, span=span)


def _nothing_to_reduce(walk: Walk, stage: ast.Score, why: str) -> None:
    if stage.reduce != "last":
        walk.scope.error("QP225", f"nothing to reduce: {why}", stage.span, "leave `reduce` out")


def extract(walk: Walk, stage: ast.Extract, number: int) -> ops.Operator:
    walk.needs_rows(stage)
    pattern, type_ = stage.pattern, _type(walk, stage)
    walk.make(stage, stage.column, type_)
    if isinstance(pattern, ast.Name):
        return ops.PythonExtract(stage.column.id, pattern.id, stage=number, span=stage.span)
    return ops.Extract(stage.column.id, pattern, type_, stage=number, span=stage.span)


def _type(walk: Walk, stage: ast.Extract) -> Type:
    pattern = stage.pattern
    if isinstance(pattern, ast.Name):
        return _registered(walk, pattern)
    text = walk.scope.columns.get("text")
    if isinstance(pattern, ast.Regex) or text is None or text.schema is None:
        return "text"
    found = type_at(text.schema.document, pattern.steps)
    if isinstance(found, str):
        return found
    notes: tuple[str, ...] = (f"`text` is held to `{text.schema.name}`",)
    notes += (f"fields: {', '.join(found.fields)}",) if found.fields else ()
    message = f"`{text.schema.name}` has nothing at this path: {found.reason}"
    fix = _renamed(pattern, found)
    walk.scope.error("QP226", message, pattern.span, "cannot be there", notes=notes, **fix)
    return "unknown"


def _renamed(pattern: ast.JsonPath, found: NothingThere) -> dict[str, Any]:
    """The path with the field that is not there put right."""
    near = closest(str(pattern.steps[found.step]), found.fields)
    if near is None:
        return {}
    steps = (*pattern.steps[: found.step], near, *pattern.steps[found.step + 1 :])
    path = format_pattern(ast.JsonPath(steps, span=pattern.span))
    return {"help": f"did you mean `{near}`?", "edit": Edit(pattern.span, path)}


def _registered(walk: Walk, name: ast.Name) -> Type:
    extractors = walk.environment.extractors
    if name.id in extractors:
        return extractors[name.id]
    notes = (f"extractors: {', '.join(sorted(extractors))}",) if extractors else ("no extractor is registered",)
    forms = listed(("extract NAME = /regex/", "extract NAME = .json.path"))
    help = f"write {forms}, or register a Python extractor of this name (`--python FILE`, or `@qp.extractor`)"
    fix = suggestion(name.id, name.span, extractors) or {"help": help}
    message = f"unknown extractor `{name.id}`"
    walk.scope.error("QP227", message, name.span, "not registered", notes=notes, **fix)
    return "unknown"
