"""`--where`: an expression of the language over the fields of a record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk
from qpdsl.grammar.parse.parser import parse_pipeline
from qpdsl.grammar.source import Source
from qpdsl.planner.plan.evaluate import evaluate_each
from qpdsl.planner.values.library import AGGREGATES, ROW_FUNCTIONS
from qpdsl.planner.values.value import frozen

_LEAD = "where "
# Texts of the language have double quotes, which a shell takes for its own. Regexes are left alone.
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|\bmatches\s*/(?:[^/\\\n]|\\.)*/)|'([^'\\]*)'""")


class RowCondition:
    """A condition that a record fulfils or not. Aggregates, as in `level == max(level)`, see all records.

    Texts may stand in single quotes. Raises UsageError for a text that is no expression.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        source = Source("--where", _LEAD + _QUOTED.sub(_double_quoted, text))
        parsed = parse_pipeline(source)
        stages = parsed.programs[0].body
        if parsed.errors:
            # The names of stages mean nothing here.
            fault = parsed.errors[0]
            raise UsageError(
                f"`--where {shorten(text)}`: {fault.message}", "as in `level >= 3 and subject == 'Algebra'`"
            )
        if len(stages) != 1 or not isinstance(stages[0], ast.Where):
            raise UsageError(f"`--where {shorten(text)}` must be one condition")
        self._condition = stages[0].condition
        for call in (node for node in walk(self._condition) if isinstance(node, ast.Apply)):
            if call.function not in {*AGGREGATES, *ROW_FUNCTIONS}:
                raise UsageError(
                    unknown(call.function, [*AGGREGATES, *ROW_FUNCTIONS], "`--where`: there is no function")
                )

    @property
    def fields(self) -> list[str]:
        """The fields that it reads, in the order in which they stand there."""
        return list(dict.fromkeys(node.id for node in walk(self._condition) if isinstance(node, ast.Name)))

    def chosen(self, records: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Whether each record fulfils it. Raises UsageError for a field that none of them has."""
        known = dict.fromkeys(name for record in records for name in record)
        for name in self.fields:
            if name not in known:
                raise UsageError(unknown(name, known, "`--where`: the data has no field"))
        scopes = [{name: frozen(record.get(name)) for name in self.fields} for record in records]
        try:
            return [bool(value) for value in evaluate_each(self._condition, scopes)]
        # Nothing has checked that functions get what they take.
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise UsageError(f"`--where {shorten(self._text)}` cannot be worked out: {error}") from error

    def explain_none(self, records: Sequence[Mapping[str, Any]]) -> str:
        """What the fields hold that it reads, for the message that no record fulfils it."""
        first = [(name, next((r[name] for r in records if name in r), None)) for name in self.fields]
        if not first:
            return "it names no field; as in `level >= 3 and subject == 'Algebra'`"
        return "; ".join(f"`{name}` is {_sort(value)}, as {shorten(repr(value), 30)}" for name, value in first)


def _double_quoted(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1]
    escaped = re.sub(r'(["{}])', r"\\\1", match[2])
    return f'"{escaped}"'


def _sort(value: object) -> str:
    return {bool: "a truth value", str: "text", dict: "a record", list: "a list"}.get(type(value), "a number")
