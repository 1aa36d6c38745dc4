"""The policy of a budgeted program: learned from kept runs, or without any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from qpdsl.budgets.expected_accuracy import held_out
from qpdsl.budgets.kept_ways import KeptWay, kept_ways, mean_spends, observations
from qpdsl.budgets.observations import Observations
from qpdsl.budgets.policy_learning import OverBudget, learned
from qpdsl.errors import UsageError
from qpdsl.planner.budget.budget_policy import BudgetPolicy, Way
from qpdsl.run_store.fingerprint import Fingerprint
from qpdsl.run_store.run_folder import RunFolder

# Fewer problems tell too little: the interval of a share is as wide as all ways lie apart.
LEAST_PROBLEMS = 30


def policy_for(
    ways: Sequence[Way],
    fingerprints: Sequence[Fingerprint],
    *,
    unit: str,
    budget: float,
    folder: RunFolder | None = None,
    nested: Iterable[tuple[int, int]] = (),
    estimates: Sequence[float | None] = (),
    models: Mapping[str, str] | None = None,
) -> BudgetPolicy:
    """What a program decides by under a budget, learned from the runs that are kept of its ways.

    `fingerprints` has that of a plain run of each way (see `kept_ways.py`), `estimates` what each is expected to take,
    for where nothing is kept. `models` are the ids of those that `fingerprints` have no digest of. `budget` is a mean
    over problems. `nested`: see `Observations`, with numbers of `ways`. The ways of the policy are those that it was
    learned from, by ascending spend. Without enough to learn from, the policy is the way that takes most within the
    budget, and nothing is claimed of it.

    Raises UsageError where every way is known to take more than the budget.
    """
    kept = kept_ways(fingerprints, unit, folder or RunFolder(), models)
    seen = observations(ways, kept, unit, nested)
    if seen is not None and len(seen.names) >= LEAST_PROBLEMS:
        return learned_policy(seen, unit, budget, _names(kept))
    return unlearned_policy(ways, list(mean_spends(kept, unit)), estimates, unit, budget)


def learned_policy(seen: Observations, unit: str, budget: float, inputs: Sequence[str]) -> BudgetPolicy:
    """The policy that does best on observations, with what is expected of it on problems that it did not learn from.

    `inputs` are names of the data. Raises UsageError where every way takes more than the budget.
    """
    try:
        cascade = learned(seen, budget)
    except OverBudget as over:
        raise _too_little(seen.ways[over.way], over.spend, unit, budget) from over
    expected = held_out(seen, budget)
    count = len(seen.names)
    of = f" of {', '.join(f'`{name}`' for name in inputs)}" if inputs else ""
    return BudgetPolicy(
        ways=seen.ways,
        first=cascade.first,
        turns=cascade.turns,
        unit=unit,
        budget=budget,
        expected=expected.right,
        spends=expected.spend,
        learned_from=f"{count} problems{of}, each run by {len(seen.ways)} ways",
        between=(expected.between.low, expected.between.high),
    )


def unlearned_policy(
    ways: Sequence[Way],
    measured: Sequence[float | None],
    estimates: Sequence[float | None],
    unit: str,
    budget: float,
) -> BudgetPolicy:
    """The one way that takes most within the budget, by what was measured of it or else is estimated.

    Where no way is thought to keep the budget it is the cheapest, and where nothing is known of any the first. Raises
    UsageError where every way was measured to take more.
    """
    estimated = [*estimates, *[None] * (len(ways) - len(estimates))]
    known = {
        number: spent
        for number, pair in enumerate(zip(measured, estimated, strict=True))
        if (spent := pair[0] if pair[0] is not None else pair[1]) is not None
    }
    fitting = [number for number, spent in known.items() if spent <= budget]
    cheapest = min(known, key=lambda number: known[number], default=0)
    if known and not fitting and all(spent is not None for spent in measured):
        raise _too_little(ways[cheapest], known[cheapest], unit, budget)
    chosen = max(fitting, key=lambda number: known[number], default=cheapest)
    return BudgetPolicy(
        ways=tuple(ways),
        first=chosen,
        turns={},
        unit=unit,
        budget=budget,
        expected=None,
        spends=measured[chosen],
        learned_from=_nothing(chosen, known, fitting, measured, unit),
        keeps=bool(fitting) if known else None,
    )


def _nothing(
    chosen: int, known: dict[int, float], fitting: list[int], measured: Sequence[float | None], unit: str
) -> str:
    if chosen not in known:
        return "nothing was learned yet, nor is it known what a way takes"
    how = "measured" if measured[chosen] is not None else "estimated"
    less = "" if fitting else ", which is the least of all ways and more than the budget"
    return f"nothing was learned yet; this way is {how} at {known[chosen]:,.4g} {unit} a problem{less}"


def _too_little(way: Way, spent: float, unit: str, budget: float) -> UsageError:
    return UsageError(
        f"a budget of {budget:,.4g} {unit} is too little: the cheapest way, `{way.name}`, takes {spent:,.4g} a problem",
        "a budget is a mean over problems; give more",
    )


def _names(kept: Sequence[KeptWay]) -> list[str]:
    """What the data is called, without the folders that it lay in."""
    return sorted({PurePath(name).name for way in kept for name in way.inputs if name})
