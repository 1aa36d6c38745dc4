"""The `extract` operator: a column out of a row's text, by a regex, a JSON path or one of `EXTRACTORS`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.operators.answers import boxed, final_answer
from qpdsl.executor.runtime.operators.json_documents import typed, value_at
from qpdsl.executor.runtime.operators.numbers import last_number
from qpdsl.executor.runtime.scoring.score import scored_texts
from qpdsl.grammar import ast
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.grammar.printable import shorten
from qpdsl.planner.cost.run_figures import ANSWERS_FOUND
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value

# So much of the end of a text is shown where nothing was found in it.
_END = 60
# So much of a pattern is shown.
_SHOWN = 40
# How a text finishes that was cut off.
_CUT_OFF = ("length", "context")


async def extract(op: ops.Extract, rows: Candidates, instance: Instance) -> Candidates:
    """Sets the column in each row. It is None where nothing matches, or where constrained output was cut off."""
    texts = scored_texts(op.of, rows, instance)
    if op.of is None:
        texts = [None if row.generated.incomplete else text for row, text in zip(rows, texts, strict=True)]
    rules = instance.usage.counts if op.built_in == "final_answer" else None
    values = [_extracted(op, text, rules) for text in texts]
    return tuple(row.with_column(op.column.id, value) for row, value in zip(rows, values, strict=True))


def why_not_found(sought: ast.SoughtText, rows: Candidates) -> str:
    """Why rows lack a column, in words for the user: what was sought, in which texts, and what would be found there.

    It depends on the rows alone, so that every plan says the same. The texts are what the rows hold now.
    """
    many = f"{len(rows):,} texts" if len(rows) > 1 else "the text"
    said = f"`{shorten(sought.pattern, _SHOWN)}` found nothing in {many}"
    if not sought.own:
        return said
    cut = sum(row.columns.get("finish") in _CUT_OFF for row in rows)
    if cut:
        every = "which was" if len(rows) == 1 else f"{cut:,} of them"
        said += f", {every} cut off by `max_tokens` or the end of the context"
    text = " ".join(rows[0].generated.text.split())
    end = text if len(text) <= _END else f"…{text[-_END:]}"
    others = [name for name in ("final_answer", "last_number") if name != sought.pattern]
    found = ((name, _built_in(name, rows[0].generated.text, None)) for name in others)
    would = next((f"; `{name}` would find {value} there" for name, value in found if value is not None), "")
    return f'{said}; {"it" if len(rows) == 1 else "the first"} ends "{end}"{would}'


def _extracted(op: ops.Extract, text: str | None, rules: Counter[str] | None) -> Value:
    if text is None:
        return None
    if isinstance(op.pattern, ast.JsonPath):
        return typed(value_at(op.pattern.steps, text), op.type)
    if isinstance(op.pattern, ast.Name) and op.pattern.id != "boxed":
        return _built_in(op.pattern.id, text, rules)
    found = _matches(op.pattern.pattern, text) if isinstance(op.pattern, ast.Regex) else boxed(text)
    if op.which == "all":
        return tuple(value for value in found if value is not None)
    return next(iter(deque(found, maxlen=1)) if op.which == "last" else found, None)


def _built_in(name: str, text: str, rules: Counter[str] | None) -> str | None:
    """What `final_answer` or `last_number` finds; `rules` count by which rule an answer was found."""
    if name == "last_number":
        number = last_number(text)
        return None if number is None else f"{number:f}"
    found = final_answer(text)
    if rules is not None:
        rules[ANSWERS_FOUND + ("none" if found is None else found[1])] += 1
    return None if found is None else found[0]


def _matches(regex: str, text: str) -> Iterator[str | None]:
    """What the matches of a regex say, from the left. A group that took no part in its match is None."""
    pattern = matcher(regex)
    return (match.group if pattern.grouped else match.text for match in pattern.all(text))
