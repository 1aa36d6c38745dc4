"""Chooses between the plans that the rules allow: how single operators run, and what they share.

The rules say what may be done; here the cost says how much of it. The joint knobs are tried in all combinations, then
the operators one after another on the best so far, and the knobs once more where an operator changed: some hundreds of
estimates in milliseconds. Candidates are compared by C = λ·Latency + (1−λ)·QualityLoss (LLM-QP, section
5), latency as a share of that of the plan that the rules made. What the program does not permit is no candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from qpdsl.grammar.words import KV_TYPES, KVType
from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.demand import demands
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.estimate import CostModel, estimate_known, with_costs
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.optimize.kv_shares import MemorySplit, memory_splits
from qpdsl.planner.optimize.measured_ways import Losses, MeasuredWay, filter_ways, offered, with_shadows
from qpdsl.planner.optimize.measured_ways import alternatives as decoding_ways
from qpdsl.planner.optimize.plan_candidate import LAMBDA, Considered, PlanCandidate, PlanChoice, objective, refusal
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import Equivalence
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.rule import Alternative, JointAlternatives, Knob, map_operators
from qpdsl.planner.rules import RULES

JOINT: tuple[JointAlternatives, ...] = tuple(chain.from_iterable(rule.joint for rule in RULES))
_KV = Knob("keys and values")
# No rule, but what it changes is told as a rule's is.
NAME = "choice_by_cost"
DESCRIPTION = "set what runs at once, how far samples run ahead and what of the rules pays, by the measured device"
# What a plan is chosen for where nobody says how many problems there are.
PROBLEMS = 128
# A plan is not changed for less than this part of the objective, since estimates are not better than that: by the steps
# of a run, in which large ones come early and read short texts, they tell plans apart that differ by a fifth.
_WORTH, _WORTH_TIMED = 0.03, 0.2


def choose(plan: PhysicalPlan, device: Device, statistics: Statistics, load: RunLoad | None = None) -> PhysicalPlan:
    """The plan of `choice_of`."""
    return choice_of(plan, device, statistics, load).plan


def choice_of(
    plan: PhysicalPlan,
    device: Device,
    statistics: Statistics,
    load: RunLoad | None = None,
    *,
    kv_types: bool = True,
    disabled: Collection[str] = (),
    ways: Sequence[MeasuredWay] = (),
) -> PlanChoice:
    """The plan with its knobs set and the estimated cost on its operators, and what was considered for it.

    Where the rules left nothing open (the naive plan), only the costs are filled in. `kv_types` is false where
    whoever runs the plan has said how keys and values are kept; `disabled` are rules that the plan is to do without.
    `ways` are ways to decode that lose something, as measured.
    """
    start = time.perf_counter()
    search = _Search(plan, device, statistics, load or RunLoad(PROBLEMS), ways, kv_types=kv_types, disabled=disabled)
    best = search.best()
    return PlanChoice(
        search.costed(search.marked(best.plan)),
        search.ruled.seconds,
        best.seconds,
        LAMBDA if plan.prefer is None else plan.prefer,
        search.load.problems,
        search.tried,
        time.perf_counter() - start,
        search.levels,
        search.source,
        lambda: tuple(search.considered(best)),
    )


class _Search:
    """The search for one plan. `ruled` is the plan as the rules left it, `levels` what min-max found of the memory."""

    def __init__(
        self,
        plan: PhysicalPlan,
        device: Device,
        statistics: Statistics,
        load: RunLoad,
        ways: Sequence[MeasuredWay],
        *,
        kv_types: bool,
        disabled: Collection[str],
    ) -> None:
        self._disabled = disabled
        self._device, self.load = device, load
        self.source = device.source(dict.fromkeys(plan.models.values()))
        self._worth = _WORTH_TIMED if self.source == "timed" else _WORTH
        # The naive plan is run as it is written.
        open_ = plan.in_flight is not None
        shadowed = with_shadows(ways, plan, statistics)
        self._ways = offered((*shadowed, *filter_ways(plan, statistics)), plan.within) if open_ else ()
        self._cards = replace(cardinalities(plan, statistics), ways={way.via: way.cost for way in self._ways})
        self._cost_model = CostModel(device, self._cards, load)
        self.tried = 0
        ruled_demands = demands(plan, self._cards)
        models = list(dict.fromkeys(demand.model for demand in ruled_demands))
        self._losses = Losses.of(self._ways, models if kv_types and open_ else (), device)
        self.ruled = self._candidate(plan)
        self.levels: tuple[MemorySplit, ...] = ()
        if plan.in_flight is not None:
            self.levels = memory_splits(ruled_demands, device, load)
        # Sequences side by side with which the slowest model is fastest.
        self._batch = self.levels[0].batch if self.levels else 1

    def best(self) -> PlanCandidate:
        """The best plan that is permitted."""
        jointly = self._better(self.ruled, self._joint(self.ruled.plan))
        singly = self._operators(jointly)
        return jointly if singly is jointly else self._better(singly, self._joint(singly.plan))

    def considered(self, best: PlanCandidate) -> Iterator[Considered]:
        """Each knob at each of its values, the others as they were chosen."""
        limit = self._objective(best)
        for alternative in self._alternatives(best.plan):
            plan, candidate = alternative.plan, self._candidate(alternative.plan)
            chosen = _settings(plan) == _settings(best.plan)
            verdict = "chosen" if chosen else refusal(candidate, best.plan.within)
            cost = self._objective(candidate)
            if verdict is None and cost <= limit:
                verdict = f"less than {self._worth:.0%} better" if cost < limit else "no better"
            yield Considered(
                alternative.knob, alternative.value, plan.equivalence, candidate.seconds, candidate.loss, cost,
                verdict or "", chosen, alternative.measured,
            )  # fmt: skip

    def marked(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan marked as chosen, rules turned back left out; the naive plan as it is."""
        return plan if plan.in_flight is None else replace(_without_turned_back(plan), chosen=True)

    def costed(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan with what is expected of it on its operators."""
        return with_costs(plan, estimate_known(plan, self._device, self._cards, self.load))

    def _candidate(self, plan: PhysicalPlan) -> PlanCandidate:
        self.tried += 1
        losses = self._losses
        return PlanCandidate(plan, self._cost_model.seconds(plan), losses.loss(plan), losses.epsilon(plan))

    def _objective(self, candidate: PlanCandidate) -> float:
        return objective(candidate, self.ruled.seconds, candidate.plan.prefer)

    def _better(self, best: PlanCandidate, others: Iterable[PlanCandidate]) -> PlanCandidate:
        """One of the others where that is worth a change: of those that come to the same, the nearest to the rules."""
        permitted = [candidate for candidate in others if refusal(candidate, best.plan.within) is None]
        least = min(map(self._objective, permitted), default=math.inf)
        worth = 1 - self._worth
        if least >= self._objective(best) * worth:
            return best
        enough = max(least, min(least / worth, self._objective(best) * worth))
        near = [candidate for candidate in permitted if self._objective(candidate) <= enough]
        return min(near, key=lambda candidate: (self._changes(candidate.plan), self._objective(candidate)))

    def _joint(self, plan: PhysicalPlan) -> Iterator[PlanCandidate]:
        """All combinations of what operators share."""
        for kept in self._kept(plan):
            if refusal(self._candidate(kept.plan), plan.within) is None:
                for combination in self._combinations(kept.plan, JOINT):
                    yield self._candidate(combination)

    def _combinations(self, plan: PhysicalPlan, knobs: Sequence[JointAlternatives]) -> Iterator[PhysicalPlan]:
        """The plan with these knobs at all of their values."""
        if not knobs:
            yield plan
            return
        for setting in self._in_turn(knobs[0](plan, self.ruled.plan, self._batch), plan):
            yield from self._combinations(setting, knobs[1:])

    def _in_turn(self, alternatives: Iterable[Alternative], plan: PhysicalPlan) -> list[PhysicalPlan]:
        """The plans of a joint knob, the rules' own setting first, then the largest; `plan` where there is none to set.

        What the floor bounds anyway is not bounded twice: problems that have few rows left make room for more.
        """
        plans = [alternative.plan for alternative in alternatives][::-1] or [plan]
        return sorted(plans, key=self._changes)

    def _changes(self, plan: PhysicalPlan) -> int:
        """How many of the joint knobs are set otherwise than the rules set them."""
        return sum(own != other for own, other in zip(_settings(plan), _settings(self.ruled.plan), strict=True))

    def _operators(self, best: PlanCandidate) -> PlanCandidate:
        """Single operators, one after another, each on the best so far."""
        offers = list(self._of_operators(best.plan))
        for knob in dict.fromkeys(alternative.knob for alternative in offers):
            better = self._better(best, [self._candidate(offer.plan) for offer in offers if offer.knob == knob])
            if better is not best:
                best, offers = better, list(self._of_operators(better.plan))
        return best

    def _of_operators(self, plan: PhysicalPlan) -> Iterator[Alternative]:
        """Ways to decode first, since what the rules decided about an operator is for one way."""
        ruled = self.ruled.plan
        return chain(decoding_ways(plan, ruled, self._ways), of_operators(plan, ruled, self._disabled))

    def _alternatives(self, plan: PhysicalPlan) -> Iterator[Alternative]:
        """Every knob at every value, the operators' first."""
        ruled = self.ruled.plan
        joint = [alternatives(plan, ruled, self._batch) for alternatives in JOINT]
        return chain(self._of_operators(plan), *joint, self._kept(plan))

    def _kept(self, plan: PhysicalPlan) -> list[Alternative]:
        if not self._losses.kept:
            return [as_computed(plan)]
        return list(kv_types(plan, self.ruled.plan, self._losses.kept))


def _settings(plan: PhysicalPlan) -> tuple[object, ...]:
    return plan.ops, plan.in_flight, plan.floor, plan.kv_type


def _without_turned_back(plan: PhysicalPlan) -> PhysicalPlan:
    """The plan without the names of rules whose decisions were turned back.

    Each is left out of its operators and, where no operator keeps it, of the plan.
    """
    rules = {rule.name: rule for rule in RULES}

    def standing(node: PhysicalOp) -> PhysicalOp:
        kept = tuple(name for name in node.rules if name not in rules or rules[name].stands(node))
        return node if kept == node.rules else replace(node, rules=kept)

    kept = map_operators(plan, standing)
    before, after = _rules_of_operators(plan), _rules_of_operators(kept)
    return replace(kept, rules=tuple(name for name in kept.rules if name not in before or name in after))


def _rules_of_operators(plan: PhysicalPlan) -> set[str]:
    return {name for node in everything(plan.ops) for name in node.rules}


# What a plan may be chosen from: the rules offer the alternatives to their own decisions, since what is allowed need
# not pay. No rule decides the type of keys and values: measurements of a type say whether it may be used.


def of_operators(plan: PhysicalPlan, ruled: PhysicalPlan, disabled: Collection[str] = ()) -> Iterator[Alternative]:
    """For every decision of the rules, as `ruled` has them, the plan with it and the one without.

    They go by operators in running order, and by the order of the rules for each. Rules that are `disabled` offer
    nothing.
    """
    order = {node.id: number for number, node in enumerate(everything(plan.ops))}
    active = (rule for rule in RULES if rule.name not in disabled)
    alternatives = chain.from_iterable(rule.alternatives(plan, ruled) for rule in active)
    yield from sorted(alternatives, key=lambda alternative: order[alternative.knob.operator])


def kv_types(
    plan: PhysicalPlan, ruled: PhysicalPlan, kept: Mapping[str, tuple[float, float | None]]
) -> Iterator[Alternative]:
    """How keys and values are kept: as the models compute them, or in a type whose error was measured for all.

    `kept` has that error by type, in logits and in draws that change (None where not known).
    """
    yield Alternative(_KV, "as computed", _keeping(plan, ruled, None))
    for kv_type in KV_TYPES:
        if kv_type in kept:
            epsilon, loss = kept[kv_type]
            changed = "" if loss is None else f", {loss:.2%} of draws change"
            measured = f"logits off by {epsilon:.2g}{changed}, by `qpdsl profile`"
            yield Alternative(_KV, kv_type, _keeping(plan, ruled, kv_type), measured)


def as_computed(plan: PhysicalPlan) -> Alternative:
    """The plan itself, where nothing is to be chosen about its keys and values."""
    return Alternative(_KV, "as computed", plan)


def _keeping(plan: PhysicalPlan, ruled: PhysicalPlan, kv_type: KVType | None) -> PhysicalPlan:
    before = {node.id: node.equivalence for node in everything(ruled.ops)}

    def looser(equivalence: Equivalence) -> Equivalence:
        return "epsilon" if kv_type is not None and equivalence == "exact" else equivalence

    def kept(node: PhysicalOp) -> PhysicalOp:
        if node.id in plan.ways:
            return node
        calls = isinstance(node.op, ops.Generate | ops.StepScore | ops.Judge | ops.Prob | ops.Tournament)
        own = looser(before[node.id]) if calls else before[node.id]
        return node if own == node.equivalence else replace(node, equivalence=own)

    own = plan.equivalence if plan.ways else ruled.equivalence
    return replace(map_operators(plan, kept), kv_type=kv_type, equivalence=looser(own))
