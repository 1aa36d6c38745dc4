"""The policy of a budgeted program: learned from saved runs, or without any, or that of an earlier sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from qpdsl.budgets.calibration import calibrated, halves
from qpdsl.budgets.observations import (
    Observations,
    SavedStrategy,
    mean_spends,
    nested_strategies,
    observations,
    saved_strategies,
)
from qpdsl.budgets.policy_learning import OverBudget, held_out, learned
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.grammar import ast
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import own_places
from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import BudgetPolicy, FixedStrategy, Promise
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import BudgetStrategy, PhysicalPlan, everything
from qpdsl.planner.strategies.written_strategies import fixed, strategies_of, strategy_plan
from qpdsl.planner.values.value import Value, plain
from qpdsl.runs.job import Job
from qpdsl.runs.statistics import wilson
from qpdsl.runs.store.fingerprint import Fingerprint, run_fingerprint
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RunRecord
from qpdsl.session.prepare import Policies
from qpdsl.session.settings import SessionSettings

# Fewer problems tell too little: the interval of a share is as wide as all strategies lie apart.
MIN_PROBLEMS = 30


def policy_for(
    ways: Sequence[FixedStrategy],
    fingerprints: Sequence[Fingerprint],
    *,
    budget: ast.Budget,
    folder: RunFolder | None = None,
    nested: Iterable[tuple[int, int]] = (),
    estimates: Sequence[float | None] = (),
    budgeted: Sequence[Fingerprint] = (),
    models: Mapping[str, str] | None = None,
) -> BudgetPolicy:
    """What a program decides by under a budget, learned from saved runs of its strategies.

    `fingerprints` has that of a plain run of each strategy (see `observations.py`), `estimates` what each is expected
    to take, for where nothing is kept. `budgeted` has those of budgeted runs that could try one strategy only: what it
    took is known of them too. `models` are the ids of those that `fingerprints` have no digest of. `budget` is
    a mean over problems, or a share of right answers. `nested`: see `Observations`, with numbers of `ways`. The
    strategies of the policy are those that it was learned from, by ascending spend. Without enough to learn from, the
    policy is the strategy that takes most within the budget, and nothing is claimed of it.

    Raises UsageError where every strategy is known to take more than the budget.
    """
    kept = saved_strategies(fingerprints, budget.unit, folder or RunFolder(), models)
    seen = observations(ways, kept, budget.unit, nested)
    if budget.accuracy is not None and seen is not None and _is_enough(*halves(seen)):
        return target_policy(seen, budget, _names(kept))
    if budget.amount is not None and seen is not None and _is_enough(seen):
        return _unpromised(budget, learned_policy(seen, budget.unit, budget.amount, _names(kept)))
    spends = list(mean_spends(kept, budget.unit))
    if budgeted and None in spends:
        alone = mean_spends(saved_strategies(budgeted, budget.unit, folder or RunFolder(), models), budget.unit)
        spends = [other if own is None else own for own, other in zip(spends, alone, strict=True)]
    return _unpromised(budget, unlearned_policy(ways, spends, estimates, budget.unit, budget.amount))


def target_policy(seen: Observations, budget: ast.Budget, inputs: Sequence[str]) -> BudgetPolicy:
    """The cheapest policy that is shown to have as many right as the budget asks for.

    Where it takes more than the amount of the budget, or nothing is shown, it is what has most right within the amount,
    and without an amount the policy that is right most often. `inputs` are names of the data. `seen` has a problem in
    each of its halves. Raises UsageError where every strategy takes more than the amount.
    """
    assert budget.accuracy is not None
    found = calibrated(seen, budget.accuracy, budget.delta)
    promise = found.promise
    if budget.amount is not None and (not promise.kept or (promise.spends or 0.0) > budget.amount):
        promise = replace(promise, kept=False)
        return replace(learned_policy(seen, budget.unit, budget.amount, inputs), promise=promise)
    between = wilson(promise.right, promise.problems)
    return BudgetPolicy(
        ways=seen.ways,
        first=found.cascade.first,
        turns=found.cascade.turns,
        unit=budget.unit,
        budget=budget.amount,
        expected=promise.right / promise.problems,
        spends=promise.spends,
        learned_from=_learned_from(promise.learned, len(seen.ways), inputs),
        between=(between.low, between.high),
        promise=promise,
    )


def _is_enough(*parts: Observations) -> bool:
    return all(len(part.names) >= MIN_PROBLEMS for part in parts)


def _unpromised(budget: ast.Budget, policy: BudgetPolicy) -> BudgetPolicy:
    """The policy; where a share of right answers was asked for, with that there was nothing to test it on."""
    if budget.accuracy is None:
        return policy
    return replace(policy, promise=Promise(budget.accuracy, budget.delta, 0, 0, None, 0, None, kept=False))


def _learned_from(problems: int, ways: int, inputs: Sequence[str]) -> str:
    of = f" of {', '.join(f'`{name}`' for name in inputs)}" if inputs else ""
    return f"{problems} problems{of}, each run by {ways} strategies"


def learned_policy(seen: Observations, unit: str, budget: float, inputs: Sequence[str]) -> BudgetPolicy:
    """The policy that does best on observations, with what is expected of it on problems that it did not learn from.

    `inputs` are names of the data. Raises UsageError where every strategy takes more than the budget.
    """
    try:
        cascade = learned(seen, budget)
    except OverBudget as over:
        raise _too_little(seen.ways[over.way], over.spend, unit, budget) from over
    expected = held_out(seen, budget)
    return BudgetPolicy(
        ways=seen.ways,
        first=cascade.first,
        turns=cascade.turns,
        unit=unit,
        budget=budget,
        expected=expected.right,
        spends=expected.spend,
        learned_from=_learned_from(len(seen.names), len(seen.ways), inputs),
        between=(expected.between.low, expected.between.high),
    )


def unlearned_policy(
    ways: Sequence[FixedStrategy],
    measured: Sequence[float | None],
    estimates: Sequence[float | None],
    unit: str,
    budget: float | None,
) -> BudgetPolicy:
    """The one strategy that takes most within the budget, by what was measured of it or else is estimated.

    Where no strategy is thought to keep the budget it is the cheapest, and where nothing is known of any the first.
    Without a budget it is the one that takes most, and the last where nothing is known. Raises UsageError where every
    strategy was measured to take more.
    """
    estimated = [*estimates, *[None] * (len(ways) - len(estimates))]
    known = {
        number: spent
        for number, pair in enumerate(zip(measured, estimated, strict=True))
        if (spent := pair[0] if pair[0] is not None else pair[1]) is not None
    }
    fitting = [number for number, spent in known.items() if budget is None or spent <= budget]
    cheapest = min(known, key=lambda number: known[number], default=0 if budget is not None else len(ways) - 1)
    if budget is not None and known and not fitting and all(spent is not None for spent in measured):
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
        return "nothing was learned yet, nor is it known what a strategy takes"
    how = "measured" if measured[chosen] is not None else "estimated"
    less = "" if fitting else ", which is the least of all strategies and more than the budget"
    return f"nothing was learned yet; this strategy is {how} at {known[chosen]:,.4g} {unit} a problem{less}"


def _too_little(way: FixedStrategy, spent: float, unit: str, budget: float) -> UsageError:
    return UsageError(
        f"a budget of {budget:,.4g} {unit} is too little: the cheapest strategy, `{way.name}`, takes {spent:,.4g}",
        "a budget is a mean over problems; give more",
    )


def _names(kept: Sequence[SavedStrategy]) -> list[str]:
    """What the data is called, without the folders that it lay in."""
    return sorted({PurePath(name).name for way in kept for name in way.inputs if name})


def program_policy(
    program: LogicalProgram,
    values: Mapping[str, Value],
    settings: SessionSettings | None = None,
    *,
    planned: str = "optimized",
    python: str = "",
) -> BudgetPolicy | None:
    """What the program decides by under its budget, learned from saved runs of its strategies.

    None where it leaves nothing open, or has no budget. `values` hold for all rows; `settings`, `planned` and `python`
    are those of the run that is to come (see `run_fingerprint` and `Job`). Raises UsageError as `policy_for` does.
    """
    if not program.ways or program.budget is None:
        return None
    ways = strategies_of(program)
    plans = [plan(fixed(program, way), support=True) for way in ways]
    digests, others = _models(program)

    def known_by(own: PhysicalPlan) -> Fingerprint:
        return _fingerprint(own, values, settings or SessionSettings(), planned, digests, python)

    return policy_for(
        ways,
        list(map(known_by, plans)),
        budget=program.budget,
        nested=nested_strategies([own.ops for own in plans]),
        estimates=[_tokens(own) if program.budget.unit == "tokens" else None for own in plans],
        budgeted=[known_by(_alone(program, way, own)) for way, own in zip(ways, plans, strict=True)],
        models=others,
    )


def _alone(program: LogicalProgram, way: FixedStrategy, own: PhysicalPlan) -> PhysicalPlan:
    """The plan of a budgeted program that tries each problem by one strategy, whatever it was picked by."""
    made = strategy_plan(program, [(way, own)], BudgetPolicy((way,), 0, {}, "tokens", None, None, None, ""))
    return replace(made, ops=tuple(replace(root, strategy=BudgetStrategy()) for root in made.ops))


def _fingerprint(
    own: PhysicalPlan,
    values: Mapping[str, Value],
    settings: SessionSettings,
    planned: str,
    digests: Mapping[str, str],
    python: str,
) -> Fingerprint:
    models = {name: digest for name, digest in digests.items() if name in own.models}
    return run_fingerprint(Job(own, None, 0, planned=planned), values, settings, models=models, python=python)


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


@dataclass(frozen=True)
class SavedPolicies:
    """The records of budgeted cells, newest first.

    What is learned now could be another policy, by the saved runs since.
    """

    records: tuple[RunRecord, ...] = ()

    @classmethod
    def of(cls, records: Iterable[RunRecord]) -> SavedPolicies:
        """Those of these records, oldest first, that are budgeted cells of sweeps."""
        found = [record for record in records if record.sweep is not None and record.policy is not None]
        return cls(tuple(reversed(found)))

    def before(self, learned: Policies) -> Policies:
        """What a cell decides by: as before, or else what is learned."""
        return lambda program, values: self.policy(program, values) or learned(program, values)

    def policy(self, program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
        """What the newest cell of a program with these values and this budget decides by; None where there is none."""
        budget = program.budget
        if budget is None:
            return None
        parameters = {name: plain(value) for name, value in values.items()}
        for record in self.records:
            if (record.program, record.source, record.parameters) != (program.name, program.text, parameters):
                continue
            policy = BudgetPolicy.from_json(record.policy or {})
            if policy.is_for(budget) and record.models == dict(program.models):
                return policy
        return None
