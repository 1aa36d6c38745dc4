"""The `vote` operator: the answer with the most weight, and when two answers are the same."""

from __future__ import annotations

import importlib
import logging
import re
import threading
from collections.abc import Callable, Hashable
from decimal import Decimal, InvalidOperation
from typing import Any

from qpdsl.executor.reward.verifier import SCORE_DIGITS
from qpdsl.executor.runtime.candidates import Candidates
from qpdsl.executor.runtime.instance import Instance, RowError
from qpdsl.executor.runtime.relational import order
from qpdsl.planner import ops
from qpdsl.planner.expr import Value, evaluate, format_value

# As people and programs write numbers: neither `1_000` nor other scripts' digits.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

# For one comparison: a power of powers takes longer than anybody waits.
_SECONDS = 2


async def vote(op: ops.Vote, rows: Candidates, instance: Instance) -> Candidates:
    """Raises RowError where `equal=math` has nothing to compare with."""
    answer = _ANSWERS[op.equal]()
    totals: dict[Hashable, float] = {}
    best: dict[Hashable, tuple[float, int]] = {}
    for index, row in enumerate(rows):
        value = row.columns.get(op.column)
        if value is None:
            continue
        same = answer(value)
        weight = order(1 if op.weight is None else evaluate(op.weight, instance.scope(row)))[1]
        totals[same] = totals.get(same, 0.0) + weight
        if same not in best or weight > best[same][0]:
            best[same] = (weight, index)
    if not totals:
        return ()
    # `max` takes the first of equals, and the dictionary is in the order values were first seen. Rounded, since the
    # rounding errors of a sum must not tell equal totals apart.
    winner = max(totals, key=lambda same: round(totals[same], SCORE_DIGITS))
    return (rows[best[winner][1]],)


def _as_texts() -> Callable[[Value], Hashable]:
    return lambda value: value


def _as_numbers() -> Callable[[Value], Hashable]:
    """Equal as decimal numbers, or as text with the space around it taken off."""

    def answer(value: Value) -> Hashable:
        text = format_value(value).strip()
        if _NUMBER.fullmatch(text):
            try:
                return Decimal(text)
            except InvalidOperation:
                return text
        return text

    return answer


def _as_mathematics() -> Callable[[Value], Hashable]:
    """The number of the first answer seen that `math_verify` takes for the same."""
    try:
        math_verify = importlib.import_module("math_verify")
    except ImportError as error:
        raise RowError("`equal=math` needs the Python package `math-verify`: pip install math-verify") from error
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # Its time limits are signals, which work in a main thread alone.
    limit = _SECONDS if threading.current_thread() is threading.main_thread() else None
    seen: list[tuple[str, Any]] = []

    def answer(value: Value) -> Hashable:
        text = format_value(value).strip()
        parsed = math_verify.parse(f"${text}$", parsing_timeout=limit)
        for number, (known, expression) in enumerate(seen):
            if text == known or math_verify.verify(expression, parsed, timeout_seconds=limit):
                return number
        seen.append((text, parsed))
        return len(seen) - 1

    return answer


_ANSWERS = {"text": _as_texts, "number": _as_numbers, "math": _as_mathematics}
