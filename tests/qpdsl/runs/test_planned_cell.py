"""The cells of programs that leave something open: their ways, or their budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.strategies.written_strategies import strategies_of
from qpdsl.planner.values.value import Value
from qpdsl.runs.cells import CellPlanner
from qpdsl.runs.grid import read_axes
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings

PLANNER = CellPlanner(Surroundings(), Settings())


def policy(program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy:
    """The first way of all."""
    assert program.budget is not None
    return BudgetPolicy(
        strategies_of(program), 0, {}, program.budget.unit, program.budget.amount, None, None, "nothing"
    )


def budgets(program: LogicalProgram) -> dict[str, LogicalProgram]:
    return {
        f"tokens={amount}": replace(program, budget=ast.Budget("tokens", amount, span=Span(0, 0)))
        for amount in (200, 800)
    }


def test_each_way_is_a_cell() -> None:
    cells = replace(PLANNER, ways=True).cells(["compute_optimal"], [])
    assert len({cell.cell.name for cell in cells}) == len(cells) > 2
    assert all(not cell.program.ways and cell.plan.policy is None for cell in cells)


@pytest.mark.parametrize(("ways", "more"), [(False, 0), (True, 6)])
def test_each_budget_is_a_cell(ways: bool, more: int) -> None:
    planner = replace(PLANNER, ways=ways, budgets=budgets, policy=policy)
    cells = planner.cells(["compute_optimal", "greedy"], [])
    found = [cell for cell in cells if cell.plan.policy is not None]
    assert [cell.cell.parameters for cell in found] == ["tokens=200", "tokens=800"]
    assert [cell.cell.name for cell in cells if cell.cell.program == "greedy"] == ["greedy"]
    assert len(cells) == 3 + more


def test_the_budget_of_the_head_holds_where_none_is_asked_for() -> None:
    (cell,) = replace(PLANNER, policy=policy).cells(["compute_optimal"], [])
    assert cell.cell.parameters == "tokens=500" and cell.plan.policy is not None


def test_a_value_settles_what_is_open() -> None:
    cells = replace(PLANNER, ways=True).cells(["compute_optimal"], read_axes(["subtrees=1,4"]))
    assert {cell.cell.settings for cell in cells} == {(("subtrees", "1"),), (("subtrees", "4"),)}
    assert all(cell.values["subtrees"] in (1, 4) for cell in cells)
