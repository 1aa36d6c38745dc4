"""A choice between plans: the candidates, what each is worth, and why one is none.

MERGED: What is left of the rules in a plan that was chosen by cost.

MERGED: Chooses between plans that the rules left open: how single operators run, and what they share.

The rules say what may be done; here the cost says how much of it. The joint knobs are tried in all combinations, then
the operators one after another on the best so far, and the knobs once more where an operator changed: some hundreds of
estimates in milliseconds. Candidates are held against each other by C = λ·Latency + (1−λ)·QualityLoss (LLM-QP, section
5), latency as a share of that of the plan as the rules left it; a candidate outside the program's tolerance is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.demand import works
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.estimate import Clock, estimate_known, with_costs
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.cost.timing import Load
from qpdsl.planner.optimize import alternatives as candidates
from qpdsl.planner.optimize.alternatives import Alternative
from qpdsl.planner.optimize.kv_shares import Parts, parts
from qpdsl.planner.plan.physical import (
    Equivalence,
    GenerateStrategy,
    Strategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    VoteStrategy,
    everything,
)
from qpdsl.planner.plan.rewrite import each
from qpdsl.planner.rules import decided_vote, incremental_score, score_cache, share_prefixes, speculative_expansion

# Digits of latency that count: estimates are not that good.
_DIGITS = 3
# λ of a program that says nothing of `prefer`: half and half.
LAMBDA = 0.5
_ORDER = {"exact": 0, "epsilon": 1, "lossy": 2, "loss": 2}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with the seconds that it is expected to take.

    `loss` is the share of results that are expected to be worse than the exact plan's, None where nobody knows it;
    `epsilon` the most by which its logits were seen to differ, None where they do not.
    """

    plan: PhysicalPlan
    seconds: float
    loss: float | None = 0.0
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class Considered:
    """One value of one knob, the others as they were chosen: `seconds` for the whole load, `cost` the objective C.

    `verdict` says why it is not the plan: "no better" where it comes to the same, empty where it costs more. `chosen`
    marks what the plan has.
    """

    knob: str
    value: str
    equivalence: Equivalence
    seconds: float
    loss: float | None
    cost: float
    verdict: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan and how it was chosen.

    `ruled_seconds` is the estimate of the plan as the rules left it, `seconds` that of the chosen one, both for
    `problems`; `tried` counts the estimates, which took `planning_seconds`. `levels` are the parts of the KV memory in
    the order of their worth (see `Parts`).
    """

    plan: PhysicalPlan
    ruled_seconds: float
    seconds: float
    weight: float
    problems: int
    tried: int
    planning_seconds: float
    considered: tuple[Considered, ...]
    levels: tuple[Parts, ...]


def objective(candidate: Candidate, exact_seconds: float, prefer: float | None) -> float:
    """C of a candidate; `prefer` is the program's λ. A loss that nobody knows counts as whole.

    Latency is rounded before it is weighed, so that what comes to the same does so under any λ.
    """
    weight = LAMBDA if prefer is None else prefer
    relative = round(candidate.seconds / exact_seconds, _DIGITS) if exact_seconds else 1.0
    return weight * relative + (1 - weight) * (1.0 if candidate.loss is None else candidate.loss)


def refusal(candidate: Candidate, within: str) -> str | None:
    """Why a plan is outside of what the program permits; None where it is not.

    Under `epsilon(ε)` logits must have been seen to differ by no more than ε; under `loss(x)` the share of results that
    change must be known and no more than x. A program that is lossy by its `via` alone permits that and nothing more.
    """
    word, _, bound = within.removesuffix(")").partition("(")
    plan, epsilon, loss = candidate.plan, candidate.epsilon, candidate.loss
    if _ORDER[plan.equivalence] > _ORDER[word]:
        return f"outside `within {within}`"
    if epsilon is None and loss == 0.0:
        return None
    # Written so that what is no number is refused.
    if word == "epsilon":
        assert epsilon is not None
        return None if epsilon <= float(bound) else f"outside `within {within}`: logits differ by up to {epsilon:.2g}"
    if word == "loss":
        if loss is None or epsilon is not None:
            return f"outside `within {within}`: nobody knows what share of results it changes"
        return None if loss <= float(bound) else f"outside `within {within}`: {loss:.2g} of results change"
    return "the program permits no more than its own `via`"


def standing(plan: PhysicalPlan) -> PhysicalPlan:
    """The plan without the names of rules whose decisions were turned back, each on its operators and, where no
    operator keeps it, on the whole."""
    kept = each(plan, _standing)
    before, after = _named(plan), _named(kept)
    return replace(kept, rules=tuple(rule for rule in kept.rules if rule not in before or rule in after))


def _named(plan: PhysicalPlan) -> set[str]:
    return {rule for node in everything(plan.ops) for rule in node.rules}


def _standing(node: PhysicalOp) -> PhysicalOp:
    rules = tuple(rule for rule in node.rules if _stands(rule, node.strategy))
    return node if rules == node.rules else replace(node, rules=rules)


def _stands(rule: str, strategy: Strategy | None) -> bool:
    match rule, strategy:
        case share_prefixes.NAME | incremental_score.NAME, GenerateStrategy(share=on) | ScoreStrategy(share=on):
            return on
        case score_cache.NAME, ScoreStrategy(cache=on):
            return on
        case speculative_expansion.NAME, GenerateStrategy(run_ahead=steps):
            return steps > 0
        case decided_vote.NAME, GenerateStrategy(vote=vote):
            return vote is not None
        case decided_vote.NAME, VoteStrategy(decided=on):
            return on
    return True


# No rule, but what it changes is told as a rule's is.
NAME = "choice_by_cost"
DESCRIPTION = "set what runs at once, how far samples run ahead and what of the rules pays, by the measured device"
# What a plan is chosen for where nobody says how many problems there are.
PROBLEMS = 128
# A plan is not changed for less than this part of the objective: estimates are not that good.
_WORTH = 0.03


def choose(plan: PhysicalPlan, device: Device, statistics: Statistics, load: Load | None = None) -> PhysicalPlan:
    """The plan of `choice_of`."""
    return choice_of(plan, device, statistics, load).plan


def choice_of(
    plan: PhysicalPlan,
    device: Device,
    statistics: Statistics,
    load: Load | None = None,
    *,
    kv_types: bool = True,
) -> Choice:
    """The plan with its knobs set and the estimated cost on its operators, and what was considered for it.

    Where the rules left nothing open (the naive plan), only the costs are filled in. `kv_types` is false where
    whoever runs the plan has said how keys and values are kept.
    """
    start = time.perf_counter()
    chooser = _Chooser(plan, device, statistics, load or Load(PROBLEMS), kv_types=kv_types)
    best = chooser.best()
    considered = tuple(chooser.considered(best))
    return Choice(
        chooser.costed(chooser.told(best.plan)),
        chooser.ruled.seconds,
        best.seconds,
        LAMBDA if plan.prefer is None else plan.prefer,
        chooser.load.problems,
        chooser.tried,
        time.perf_counter() - start,
        considered,
        chooser.levels,
    )


class _Chooser:
    """The search for one plan. `ruled` is the plan as the rules left it, `levels` what min-max found of the memory."""

    def __init__(
        self, plan: PhysicalPlan, device: Device, statistics: Statistics, load: Load, *, kv_types: bool
    ) -> None:
        self._device, self.load = device, load
        self._cards = cardinalities(plan, statistics)
        self._clock = Clock(device, self._cards, load)
        self.tried = 0
        self.ruled = self._candidate(plan)
        done = works(plan, self._cards)
        self._models = list(dict.fromkeys(work.model for work in done))
        self._kv_types = kv_types
        self.levels: tuple[Parts, ...] = parts(done, device, load) if plan.in_flight is not None else ()

    def best(self) -> Candidate:
        best = self._better(self.ruled, self._joint(self.ruled.plan))
        settled = self._operators(best)
        if settled is not best:
            settled = self._better(settled, self._joint(settled.plan))
        return settled

    def considered(self, best: Candidate) -> Iterator[Considered]:
        """Each knob at each of its values, the others as they were chosen."""
        limit = self._objective(best)
        for each in chain.from_iterable(self._knobs(best.plan)):
            found = self._candidate(each.plan, each)
            same = _settings(each.plan) == _settings(best.plan)
            why = "chosen" if same else refusal(found, best.plan.within)
            value = self._objective(found)
            if why is None and value <= limit:
                why = f"less than {_WORTH:.0%} better" if value < limit else "no better"
            yield Considered(
                each.knob, each.value, each.plan.equivalence, found.seconds, found.loss, value, why or "", same
            )

    def told(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan with what the choice did to it: a mark where it changed something, rules turned back left out."""
        changed = _settings(plan) != _settings(self.ruled.plan)
        return replace(standing(plan), chosen=True) if changed else plan

    def costed(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan with what is expected of it on its operators."""
        return with_costs(plan, estimate_known(plan, self._device, self._cards, self.load))

    def _candidate(self, plan: PhysicalPlan, made_by: Alternative | None = None) -> Candidate:
        self.tried += 1
        epsilon = made_by.epsilon if made_by is not None else None
        return Candidate(plan, self._clock.seconds(plan), epsilon=epsilon)

    def _objective(self, candidate: Candidate) -> float:
        return objective(candidate, self.ruled.seconds, candidate.plan.prefer)

    def _better(self, best: Candidate, others: Iterable[Candidate]) -> Candidate:
        """The best of the others where that is worth a change."""
        permitted = [each for each in others if refusal(each, best.plan.within) is None]
        # Of those that come to the same the first stays.
        found = min(permitted, key=self._objective, default=best)
        return found if self._objective(found) < self._objective(best) * (1 - _WORTH) else best

    def _joint(self, plan: PhysicalPlan) -> Iterator[Candidate]:
        """All combinations of what operators share."""
        for kept in self._kept(plan):
            probe = self._candidate(kept.plan, kept)
            if refusal(probe, plan.within) is not None:
                continue
            for ahead in self._in_turn(candidates.aheads(kept.plan, self.ruled.plan), kept.plan):
                for most in self._in_turn(candidates.in_flight(ahead), ahead):
                    for floor in self._in_turn(candidates.floors(most, self._batch), most):
                        yield self._candidate(floor, kept)

    def _in_turn(self, alternatives: Iterable[Alternative], plan: PhysicalPlan) -> list[PhysicalPlan]:
        """The plans of a joint knob, the rules' own setting first, then the largest; `plan` where there is none to set.

        What the floor bounds anyway is not bounded twice: problems that have few rows left make room for more.
        """
        ruled = self.ruled.plan
        plans = [each.plan for each in alternatives][::-1] or [plan]

        def changes(each: PhysicalPlan) -> int:
            return (each.in_flight != ruled.in_flight) + (each.floor != ruled.floor) + (each.ops != ruled.ops)

        return sorted(plans, key=changes)

    def _operators(self, best: Candidate) -> Candidate:
        """Single operators, one after another, each on the best so far."""
        knobs = list(dict.fromkeys(each.knob for each in candidates.of_operators(best.plan, self.ruled.plan)))
        for knob in knobs:
            now = [each for each in candidates.of_operators(best.plan, self.ruled.plan) if each.knob == knob]
            best = self._better(best, [replace(self._candidate(each.plan), epsilon=best.epsilon) for each in now])
        return best

    def _knobs(self, plan: PhysicalPlan) -> Iterator[Iterable[Alternative]]:
        yield candidates.of_operators(plan, self.ruled.plan)
        yield candidates.aheads(plan, self.ruled.plan)
        yield candidates.in_flight(plan)
        yield candidates.floors(plan, self._batch)
        yield self._kept(plan)

    def _kept(self, plan: PhysicalPlan) -> list[Alternative]:
        if not self._kv_types or plan.in_flight is None:
            return [Alternative("keys and values", "as computed", plan)]
        return list(candidates.kv_types(plan, self.ruled.plan, self._models, self._device))

    @property
    def _batch(self) -> int:
        """Sequences side by side under which the slowest model is fastest."""
        return max(self.levels[0].batch, candidates.FLOORS[0]) if self.levels else candidates.FLOORS[0]


def _settings(plan: PhysicalPlan) -> object:
    return plan.ops, plan.in_flight, plan.floor, plan.kv_type
