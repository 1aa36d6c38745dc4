"""Which stages make columns."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar import ast


def makers(stages: tuple[ast.Stage, ...]) -> Iterator[tuple[str, ast.Stage]]:
    """The columns that stages make, with the stage, in reading order."""
    for stage in stages:
        if isinstance(stage, ast.Extract):
            yield stage.column.id, stage
        elif isinstance(stage, ast.Score):
            yield (stage.into.id if stage.into else "score"), stage
        elif isinstance(stage, ast.Generate | ast.Call) and stage.into:
            yield stage.into.id, stage
        elif isinstance(stage, ast.Repeat | ast.Peek):
            yield from makers(stage.body)
        elif isinstance(stage, ast.Branch):
            for arm in stage.arms:
                yield from makers(arm)
