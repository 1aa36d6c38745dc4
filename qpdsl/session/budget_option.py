"""A budget as the command line writes it: `tokens=2000`, `accuracy=0.9` or `accuracy=0.9 or cost=0.02`."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.errors import UsageError, unknown
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import BUDGET_UNITS, DEFAULT_UNIT, DELTA, BudgetUnit
from qpdsl.planner.plan.logical import LogicalProgram

_ACCURACY = "accuracy"
_FORM = (
    "`--budget tokens=2000`, `thought_tokens=800`, `seconds=1.5` or `cost=0.002`; `accuracy=0.9` or "
    '`"accuracy=0.9 or cost=0.02"`'
)


def budgeted(program: LogicalProgram, budget: str | None) -> LogicalProgram:
    """The program under a budget such as `tokens=2000`, in the place of its own. Raises UsageError.

    The `delta` of a share of right answers is that of the program, where it has one.
    """
    if budget is None:
        return program
    if not program.ways:
        message = f"`--budget`: `{program.name}` leaves nothing to a budget"
        raise UsageError(message, "`strategy { { … } or { … } }` and `auto` in a program do; see docs/tune/budgets.md")
    return replace(program, budget=_budget(budget, DELTA if program.budget is None else program.budget.delta))


def budget_option(budget: ast.Budget) -> str:
    """A budget as `--budget` takes it."""
    limit = "" if budget.amount is None else f"{budget.unit}={budget.amount:g}"
    if budget.accuracy is None:
        return limit
    return f"{_ACCURACY}={budget.accuracy:g}" + (f" or {limit}" if limit else "")


def _budget(text: str, delta: float) -> ast.Budget:
    first, *rest = text.split(" or ")
    name, share = _pair(first)
    if name != _ACCURACY:
        if rest:
            raise UsageError(f"`--budget`: `or` follows `{_ACCURACY}=…`, not `{name}`", _FORM)
        return ast.Budget(*_limit(name, share), span=Span(0, 0))
    if len(rest) > 1:
        raise UsageError("`--budget`: one limit follows a share of right answers", _FORM)
    unit, amount = _limit(*_pair(rest[0])) if rest else (DEFAULT_UNIT, None)
    accuracy = _number(share)
    if not 0 < accuracy < 1:
        raise UsageError(f"`--budget`: {_ACCURACY} is a share between 0 and 1, not `{share}`", _FORM)
    return ast.Budget(unit, amount, accuracy, delta, span=Span(0, 0))


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError("`--budget`: it takes UNIT=AMOUNT", _FORM)
    return name.strip(), value.strip()


def _limit(name: str, text: str) -> tuple[BudgetUnit, float]:
    unit = next((unit for unit in BUDGET_UNITS if unit == name), None)
    if unit is None:
        raise UsageError(f"`--budget`: {unknown(name, (*BUDGET_UNITS, _ACCURACY), 'a budget counts no')}", _FORM)
    amount = _number(text)
    if not 0 < amount < float("inf"):
        raise UsageError(f"`--budget`: {unit} is a number over 0, not `{text}`", _FORM)
    return unit, amount


def _number(text: str) -> float:
    """The number; 0 where it is none, which no budget may be."""
    try:
        return float(text)
    except ValueError:
        return 0.0
