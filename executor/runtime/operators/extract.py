"""The `extract` operator: a column out of a row's text, by a regex, a JSON path or a LaTeX box."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.operators.json_documents import typed, value_at
from qpdsl.executor.runtime.scoring.score import scored_texts
from qpdsl.grammar import ast
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value

_BOX = re.compile(r"\\boxed\s*\{")
# A sign behind a backslash, which pairs with nothing, or a brace.
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


async def extract(op: ops.Extract, rows: Candidates, instance: Instance) -> Candidates:
    """Sets the column in each row. It is None where nothing matches, or where constrained output was cut off."""
    texts = scored_texts(op.of, rows, instance)
    if op.of is None:
        texts = [None if row.generated.incomplete else text for row, text in zip(rows, texts, strict=True)]
    return tuple(row.with_column(op.column.id, _extracted(op, text)) for row, text in zip(rows, texts, strict=True))


def _extracted(op: ops.Extract, text: str | None) -> Value:
    if text is None:
        return None
    if isinstance(op.pattern, ast.JsonPath):
        return typed(value_at(op.pattern.steps, text), op.type)
    found = _matches(op.pattern.pattern, text) if isinstance(op.pattern, ast.Regex) else boxed(text)
    if op.which == "all":
        return tuple(value for value in found if value is not None)
    return next(iter(deque(found, maxlen=1)) if op.which == "last" else found, None)


def _matches(regex: str, text: str) -> Iterator[str | None]:
    """What the matches of a regex say, from the left. A group that took no part in its match is None."""
    pattern = matcher(regex)
    return (match.group if pattern.grouped else match.text for match in pattern.all(text))


def boxed(text: str) -> Iterator[str]:
    """What stands in the braces of each `\\boxed{…}`, braces inside paired; nothing of a box that does not end."""
    ends = _closing_braces(text)
    position = 0
    while (box := _BOX.search(text, position)) is not None:
        end = ends.get(box.end())
        position = box.end() if end is None else end
        if end is not None:
            yield text[box.end() : end]


def _closing_braces(text: str) -> dict[int, int]:
    """The place of each brace that closes another, by the place behind that one."""
    open_braces: list[int] = []
    ends: dict[int, int] = {}
    for sign in _BRACE.finditer(text):
        if sign[0] == "{":
            open_braces.append(sign.end())
        elif sign[0] == "}" and open_braces:
            ends[open_braces.pop()] = sign.start()
    return ends
