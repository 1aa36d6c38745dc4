"""Conditions of `repeat` that no round can change."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.planner.expr import evaluate
from qpdsl.planner.reads import is_fixed, names
from qpdsl.planner.walk import Walk

_GENERATED = frozenset({"text", "step", "finish", "finished", "logprob", "tokens"})


def warn_until(walk: Walk, stage: ast.Repeat, until: ast.Expr) -> None:
    """Warns of a condition that holds at once or never, whatever the body does."""
    if is_fixed(until):
        holds = bool(evaluate(until, {}))
        message = "this holds at once, so that no round runs" if holds else "this never holds"
        help = "leave the `repeat` out" if holds else "leave `until` out, to run all rounds"
        walk.warn(Diagnostic("QP305", message, until.span, "always the same", help=help))
        return
    read = {name.id for name in names(until)}
    columns = read & walk.scope.columns.keys()
    changed = _changed(stage.body)
    if not read or changed is None or columns & changed:
        return
    same = ", ".join(f"`{name}`" for name in sorted(columns))
    what = f"no round changes {same}" if same else "it reads parameters only"
    message = f"this holds at once or never: {what}"
    walk.warn(Diagnostic("QP305", message, until.span, "the same in every round"))


def _changed(stages: tuple[ast.Stage, ...]) -> frozenset[str] | None:
    """The columns that stages change; None where the rows themselves become others, and so every aggregate."""
    changed: frozenset[str] = frozenset()
    for stage in stages:
        match stage:
            case ast.Generate(into=into):
                changed |= _GENERATED | ({into.id} if into else set())
            case ast.Prompt() | ast.Chat():
                changed |= _GENERATED
            case ast.Score(into=into):
                changed |= {into.id if into else "score"}
            case ast.Extract(column=column):
                changed |= {column.id}
            case ast.Repeat(body=body):
                inner = _changed(body)
                if inner is None:
                    return None
                changed |= inner
            case _:
                return None
    return changed
