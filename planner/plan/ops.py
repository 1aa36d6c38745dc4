"""Operators: the stages of a program once they were checked, and what a budget makes of several ways to run one.

An operator is a stage with a number (see `Stage` of the syntax tree), from which it is told apart in messages, and on
which noise depends. Its blocks are empty: a plan holds what was made of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.grammar.ast.clauses import *  # noqa: F403
from qpdsl.grammar.ast.model_stages import *  # noqa: F403
from qpdsl.grammar.ast.stage import InvalidPlan as InvalidPlan
from qpdsl.grammar.ast.stage import Stage
from qpdsl.grammar.ast.stage import require as require
from qpdsl.grammar.ast.stages import *  # noqa: F403
from qpdsl.grammar.ast.stages import Strategy
from qpdsl.planner.plan.budget_policy import FixedStrategy

Operator = Stage
# Thresholds of a filter that are on offer, where its confidence is a probability and their losses were measured.
THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class BudgetedArms(Strategy):
    """The whole of a program that leaves its ways to a budget: one of `ways`, or several one after another.

    Each way is a chain of operators with a return of its own, as if the program had been written so. The last one that
    is tried gives the program's rows and its value, and the column of `scores` that its score is reported from. Only a
    physical plan has this operator (`planner/strategies/written_strategies.py`).
    """

    operator = "Strategy"
    rows = "one"

    ways: tuple[FixedStrategy, ...]
    scores: tuple[str | None, ...]

    def _check(self) -> None:
        require(bool(self.ways) and len(self.ways) == len(self.scores), "a strategy has ways, each with its score")
