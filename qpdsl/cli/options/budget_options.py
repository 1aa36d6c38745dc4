"""`--budget`, and the policy that a program under a budget runs by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import say
from qpdsl.cli.shared_options import with_options
from qpdsl.errors import UsageError, unknown
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import BUDGET_UNITS

if TYPE_CHECKING:
    from qpdsl.planner.budget.budget_policy import BudgetPolicy
    from qpdsl.planner.plan.logical import LogicalProgram
    from qpdsl.planner.values.value import Value
    from qpdsl.run_store.fingerprint import Computing

Command = Callable[..., Any]
_HELP = "`--budget tokens=2000`, `--budget seconds=1.5` or `--budget cost=0.002`"


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """The option about budgets as the user set it."""

    budget: str | None

    def budgeting(self, program: LogicalProgram) -> LogicalProgram:
        """The program under the budget that the option gives, in the place of its own. Raises UsageError."""
        if self.budget is None:
            return program
        if not program.ways:
            message = f"`--budget`: `{program.name}` leaves nothing to a budget"
            raise UsageError(message, "`strategy { { … } or { … } }` and `auto` in a program do; see docs/budgets.md")
        name, sign, text = self.budget.partition("=")
        unit = next((unit for unit in BUDGET_UNITS if unit == name.strip()), None)
        if not sign or unit is None:
            what = unknown(name.strip(), BUDGET_UNITS, "a budget counts no") if sign else "it takes UNIT=AMOUNT"
            raise UsageError(f"`--budget`: {what}", _HELP)
        amount = _amount(text)
        if amount is None:
            raise UsageError(f"`--budget`: {unit} is a number over 0, not `{text.strip()}`", _HELP)
        return replace(program, budget=ast.Budget(unit, amount, span=Span(0, 0)))


_OPTIONS = (
    click.option(
        "--budget",
        metavar="UNIT=AMOUNT",
        help="What a problem may take on average, of a program that leaves widths or arms open: tokens=2000, "
        "seconds=1.5 or cost=0.002.  [default: what the program says]",
    ),
)


def budget_options(command: Command) -> Command:
    """The option of a command that plans programs."""
    return with_options(_OPTIONS, command)


def policy_of(
    program: LogicalProgram, values: Mapping[str, Value], computing: Computing, planned: str, python: str
) -> BudgetPolicy | None:
    """What a program decides by under its budget, learned from the runs that are kept.

    None where it leaves nothing open. Raises UsageError where it has no budget, or the least of its ways takes more.
    """
    if not program.ways:
        return None
    from qpdsl.budgets.program_policy import program_policy
    from qpdsl.planning.planning import without_budget

    policy = program_policy(program, values, computing, planned=planned, python=python)
    if policy is None:
        raise without_budget(program)
    return policy


def counts_cost(program: LogicalProgram) -> bool:
    """Whether what the program leaves open is left to a budget of money."""
    return bool(program.ways) and program.budget is not None and program.budget.unit == "cost"


def warn_of_budget(*policies: BudgetPolicy | None) -> None:
    """Says once of each policy that it may not keep its budget, where that is so."""
    from qpdsl.planner.budget.policy_words import doubt

    for words in dict.fromkeys(doubt(policy) for policy in policies if policy is not None):
        if words is not None:
            say(words)


def _amount(text: str) -> float | None:
    """The amount of a budget; None where the text is no number over 0."""
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if 0 < amount < float("inf") else None
