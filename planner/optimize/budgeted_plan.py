"""The plan of a program under a budget: each strategy that its policy can lead to, planned as a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qpdsl.planner.optimize import by_cost
from qpdsl.planner.optimize.optimizer import Change, Optimized
from qpdsl.planner.plan.budget_policy import BudgetPolicy, FixedStrategy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.plan.verify import verify_physical
from qpdsl.planner.rules import RULES
from qpdsl.planner.strategies.written_strategies import fixed, reached_strategies, reads_support, strategy_plan

# The plan of a strategy: of its program, the columns that are read of its last rows, and whether its support is read.
PlanWay = Callable[[LogicalProgram, tuple[str, ...] | None, bool], Optimized]


def budgeted(
    program: LogicalProgram, reads: tuple[str, ...] | None, policy: BudgetPolicy, plan_way: PlanWay
) -> Optimized:
    """The plans of the strategies as one plan, with those on the way to it. Raises ValueError where one is not there.

    `reads`: see `PhysicalPlan`.
    """
    plans: list[_WayPlans] = []
    for way in reached_strategies(policy):
        own = fixed(program, way)
        plans.append(_WayPlans(way, plan_way(own, _reads(own, reads), reads_support(policy, way))))

    def whole(plan_of: Callable[[_WayPlans], PhysicalPlan]) -> PhysicalPlan:
        made = strategy_plan(program, [(plan.way, plan_of(plan)) for plan in plans], policy)
        verify_physical(made)
        return made

    naive = whole(lambda plan: plan.optimized.naive)
    seconds = {
        name: sum(plan.optimized.seconds.get(name, 0.0) for plan in plans) for name in plans[0].optimized.seconds
    }
    changes = [Change(rule, whole(lambda plan: plan.now)) for rule in _in_step(plans)]
    last = whole(lambda plan: plan.optimized.plan)
    if changes or last != naive:
        name = by_cost.NAME if last.chosen else (changes[-1].rule if changes else by_cost.NAME)
        if not changes or changes[-1].plan != last:
            changes.append(Change(name, last))
    return Optimized(naive, tuple(changes), seconds, plans[0].optimized.disabled)


@dataclass(slots=True)
class _WayPlans:
    """A strategy with the plans on the way to its own, and how far the whole plan has come through them."""

    way: FixedStrategy
    optimized: Optimized
    done: int = 0

    @property
    def now(self) -> PhysicalPlan:
        return self.optimized.changes[self.done - 1].plan if self.done else self.optimized.naive

    def step(self, rule: str) -> bool:
        """Goes on by a rule, if that is the next to change it."""
        changes = self.optimized.changes
        if self.done < len(changes) and changes[self.done].rule == rule:
            self.done += 1
            return True
        return False

    @property
    def ended(self) -> bool:
        return self.done == len(self.optimized.changes)


def _in_step(plans: Sequence[_WayPlans]) -> Iterator[str]:
    """Each rule that changes a strategy, in the order of the rules, pass by pass; they are then as it left them."""
    while not all(plan.ended for plan in plans):
        for rule in RULES:
            stepped = [plan for plan in plans if plan.step(rule.name)]
            if stepped:
                yield rule.name


def _reads(way: LogicalProgram, reads: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What is read of the last rows of a strategy, which may report another column as its score."""
    if reads is None:
        return None
    score = () if way.score_column is None else (way.score_column,)
    return (*score, *(("text",) if "text" in reads else ()))
