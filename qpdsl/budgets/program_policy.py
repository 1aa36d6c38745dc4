"""The policy of a program that leaves its ways to a budget, from the program itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qpdsl.budgets.nested_draws import nested_ways
from qpdsl.budgets.policy_for import policy_for
from qpdsl.dataset.job import Job
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_digest import location_digest
from qpdsl.model_location import own_places
from qpdsl.planner.budget.budget_policy import BudgetPolicy
from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.values.value import Value
from qpdsl.planner.ways.open_program import fixed, ways_of
from qpdsl.run_store.fingerprint import Computing, Fingerprint, run_fingerprint


def program_policy(
    program: LogicalProgram,
    values: Mapping[str, Value],
    computing: Computing | None = None,
    *,
    planned: str = "optimized",
    python: str = "",
) -> BudgetPolicy | None:
    """What the program decides by under its budget, learned from the runs that are kept of its ways.

    None where it leaves nothing open, or has no budget. `values` hold for all rows; `computing`, `planned` and `python`
    are those of the run that is to come (see `run_fingerprint` and `Job`). Raises UsageError as `policy_for` does.
    """
    if not program.ways or program.budget is None:
        return None
    ways = ways_of(program)
    plans = [plan(fixed(program, way), support=True) for way in ways]
    digests, others = _models(program)
    return policy_for(
        ways,
        [_fingerprint(own, values, computing or Computing(), planned, digests, python) for own in plans],
        unit=program.budget.unit,
        budget=program.budget.amount,
        nested=nested_ways([own.ops for own in plans]),
        estimates=[_tokens(own) if program.budget.unit == "tokens" else None for own in plans],
        models=others,
    )


def _fingerprint(
    own: PhysicalPlan,
    values: Mapping[str, Value],
    computing: Computing,
    planned: str,
    digests: Mapping[str, str],
    python: str,
) -> Fingerprint:
    models = {name: digest for name, digest in digests.items() if name in own.models}
    return run_fingerprint(Job(own, None, 0, planned=planned), values, computing, models=models, python=python)


def _models(program: LogicalProgram) -> tuple[dict[str, str], dict[str, str]]:
    """The digests of models whose files are here, and the ids of the others, which nothing is asked of yet."""
    digests, others = dict[str, str](), dict[str, str]()
    for name, id in program.models.items():
        places = [] if is_remote(id) else [place for place, _ in own_places(id)]
        if places and all(isinstance(place, Path) and place.is_dir() for place in places):
            digests[name] = location_digest(*places)
        else:
            others[name] = id
    return digests, others


def _tokens(own: PhysicalPlan) -> float:
    """About how many tokens a problem takes, by rule of thumb."""
    cards = cardinalities(own, Statistics()).of
    drawing = [node.id for node in everything(own.ops) if isinstance(node.op, ops.Generate)]
    return sum(cards[id].samples * cards[id].length for id in drawing)
