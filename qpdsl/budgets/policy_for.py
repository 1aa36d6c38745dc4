"""The policy of a budgeted program: learned from saved runs, or without any, or that of an earlier sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from qpdsl.budgets.calibration import calibrated, halves
from qpdsl.budgets.observations import (
    Observations,
    SavedStrategy,
    nested_strategies,
    observations,
    saved_strategies,
)
from qpdsl.budgets.policy_learning import OverBudget, held_out, learned
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.grammar import ast
from qpdsl.grammar.model_id import is_remote
from qpdsl.grammar.words import DEFAULT_UNIT
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
    sizes: Sequence[float] = (),
    budgeted: Sequence[Fingerprint] = (),
    models: Mapping[str, str] | None = None,
) -> BudgetPolicy:
    """What a program decides by under a budget, learned from saved runs of its strategies.

    `fingerprints` has that of a plain run of each strategy (see `observations.py`), `sizes` the tokens that each may
    take by rule of thumb, for where nothing is kept. `budgeted` has those of budgeted runs that could try one strategy
    only: what it took is known of them too. `models` are the ids of those that `fingerprints` have no digest of.
    `budget` is a mean over problems, or a share of right answers. `nested`: see `Observations`, with numbers of `ways`.
    The strategies of the policy are those that it was learned from, by ascending spend. Without enough to learn from,
    the policy is the strategy that takes most within the budget, and nothing is claimed of it.

    Raises UsageError where every strategy is known to take more than the budget.
    """
    kept = saved_strategies(fingerprints, budget.unit, folder or RunFolder(), models)
    seen = observations(ways, kept, budget.unit, nested)
    if budget.accuracy is not None and seen is not None and _is_enough(*halves(seen)):
        return target_policy(seen, budget, _names(kept))
    if budget.amount is not None and seen is not None and _is_enough(seen):
        return _unpromised(budget, learned_policy(seen, budget.unit, budget.amount, _names(kept)))
    if budgeted and not all(own.runs for own in kept):
        alone = saved_strategies(budgeted, budget.unit, folder or RunFolder(), models)
        kept = [own if own.runs else other for own, other in zip(kept, alone, strict=True)]
    return _unpromised(budget, unlearned_policy(ways, kept, sizes or [1.0] * len(ways), budget.unit, budget.amount))


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
    kept: Sequence[SavedStrategy],
    sizes: Sequence[float],
    unit: str,
    budget: float | None,
) -> BudgetPolicy:
    """The one strategy that takes most within the budget, by what was measured of it or else is estimated.

    An estimate is the strategy's share of `sizes`, tokens by rule of thumb, of what was measured of the others, and no
    more than a larger one takes. Where no strategy is thought to keep the budget it is the cheapest, and where nothing
    is known of any the first. Without a budget it is the largest by `sizes`, whatever was measured. Raises UsageError
    where every strategy was measured to take more.
    """
    measured = [own.mean_spend(unit) for own in kept]
    known = _spends(measured, sizes, unit)
    fitting = [number for number, spent in known.items() if budget is None or spent <= budget]
    if budget is None:
        chosen = max(range(len(ways)), key=lambda number: (sizes[number], number))
        learned_from = "nothing was learned yet; this strategy is the most expensive by rule of thumb"
    else:
        cheapest = min(known, key=lambda number: known[number], default=0)
        if known and not fitting and None not in measured:
            raise _too_little(ways[cheapest], known[cheapest], unit, budget)
        chosen = max(fitting, key=lambda number: known[number], default=cheapest)
        learned_from = _nothing(known.get(chosen), kept, kept[chosen], unit)
        if known and not fitting:
            learned_from += ", which is the least of all strategies and more than the budget"
    return BudgetPolicy(
        ways=tuple(ways),
        first=chosen,
        turns={},
        unit=unit,
        budget=budget,
        expected=None,
        spends=measured[chosen],
        learned_from=learned_from,
        keeps=bool(fitting) if known else None,
    )


def _spends(measured: Sequence[float | None], sizes: Sequence[float], unit: str) -> dict[int, float]:
    """What strategies take, by number: measured, else estimated; without those of which neither can be told."""
    seen = {number: spent for number, spent in enumerate(measured) if spent is not None}
    per_size = sum(seen.values()) / sum(sizes[number] for number in seen) if seen else float(unit == DEFAULT_UNIT)
    if not per_size:
        return seen
    larger = {number: [seen[own] for own in seen if sizes[own] >= size] for number, size in enumerate(sizes)}
    return {number: seen.get(number, min([per_size * size, *larger[number]])) for number, size in enumerate(sizes)}


def _nothing(spent: float | None, kept: Sequence[SavedStrategy], own: SavedStrategy, unit: str) -> str:
    if spent is None:
        return "nothing was learned yet, nor is it known what a strategy takes"
    runs = own.runs or sorted(run for other in kept for run in other.runs)
    how = "measured" if own.runs else "estimated"
    others = "" if own.runs else "what others took in "
    by = f", by {others}run `{runs[-1]}`" if runs else ", by rule of thumb"
    by += f" and {len(runs) - 1} before it" if len(runs) > 1 else ""
    return f"nothing was learned yet; this strategy is {how} at {spent:,.4g} {unit} a problem{by}"


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
        sizes=list(map(_tokens, plans)),
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
