"""Chooses between plans that the rules left open: how much runs at once, how far ahead, and who gets the memory.

The rules say what may be done; here the cost says how much of it. Candidates are tried one knob after another, each on
the best so far, which takes a few dozen estimates and single milliseconds. They are held against each other by
C = λ·Latency + (1−λ)·QualityLoss (LLM-QP, section 5), latency as a share of that of the plan as the rules left it;
a candidate outside the program's tolerance is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from qpdsl.planner.cardinality import cardinalities
from qpdsl.planner.cost import Estimate, estimate_cost, with_costs
from qpdsl.planner.device import Device
from qpdsl.planner.implementation import implementation
from qpdsl.planner.memory import parts
from qpdsl.planner.pace import Load
from qpdsl.planner.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.stats import Statistics
from qpdsl.planner.strategy import GenerateHow, How, ScoreHow
from qpdsl.planner.work import works

# No rule, but what it changes is told as a rule's is.
NAME = "choice_by_cost"
DESCRIPTION = "set what runs at once, how far samples run ahead and who gets the memory, by the measured device"
# What a program that says nothing of `prefer` wants: half and half.
LAMBDA = 0.5
_IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FLOORS = (16, 32, 64, 128)
_AHEAD = (0, 1, 2)
# A knob is not turned for less than this part of the objective: estimates are not that good.
_WORTH = 0.03
_ORDER = {"exact": 0, "epsilon": 1, "lossy": 2, "loss": 2}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with its estimate. `loss` is the share of results that are expected to be worse than the exact plan's."""

    plan: PhysicalPlan
    estimate: Estimate
    loss: float = 0.0


def choose(plan: PhysicalPlan, device: Device, statistics: Statistics, load: Load | None = None) -> PhysicalPlan:
    """The plan with its joint knobs set and the estimated cost on its operators.

    Where the rules left nothing open (the naive plan), only the costs are filled in.
    """
    load = load or Load(problems=128)

    def tried(changed: PhysicalPlan) -> Candidate:
        return Candidate(changed, estimate_cost(changed, device, statistics, load))

    best = tried(plan)
    latency = best.estimate.seconds
    for knob in (_memory(device, statistics, load), _flights, _aheads, _plainer):
        for changed in knob(best.plan):
            candidate = tried(changed)
            if permitted(candidate, plan.within) and objective(candidate, latency, plan.prefer) < objective(
                best, latency, plan.prefer
            ) * (1 - _WORTH):
                best = candidate
    return with_costs(best.plan, best.estimate)


def objective(candidate: Candidate, exact_seconds: float, prefer: float | None) -> float:
    """C of a candidate; `prefer` is the program's λ."""
    weight = LAMBDA if prefer is None else prefer
    relative = candidate.estimate.seconds / exact_seconds if exact_seconds else 1.0
    return weight * relative + (1 - weight) * candidate.loss


def permitted(candidate: Candidate, within: str) -> bool:
    """Whether a plan keeps to what the program permits: an equivalence, and the bound of `loss(x)`."""
    word, _, bound = within.removesuffix(")").partition("(")
    if _ORDER[candidate.plan.equivalence] > _ORDER[word]:
        return False
    return word != "loss" or candidate.loss <= float(bound)


Knob = Callable[[PhysicalPlan], Iterator[PhysicalPlan]]


def _memory(device: Device, statistics: Statistics, load: Load) -> Knob:
    """Parts of the KV memory and the sequences to keep at work, by min-max over the models."""

    def candidates(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
        if plan.in_flight is None:
            return
        found = parts(works(plan, cardinalities(plan, statistics)), device, load)
        if found is not None:
            yield replace(plan, floor=max(found.batch, _FLOORS[0]), kv_shares=found.shares)

    return candidates


def _flights(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
    """Problems at once, and the sequences below which another one starts."""
    if plan.in_flight is None:
        return
    for most in _IN_FLIGHT:
        yield replace(plan, in_flight=most)
    for floor in _FLOORS:
        for most in (plan.in_flight, _IN_FLIGHT[-1]):
            yield replace(plan, in_flight=most, floor=floor)


def _aheads(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
    """How far samples run ahead, where a rule lets them."""
    if any(isinstance(node.how, GenerateHow) and node.how.run_ahead for node in everything(plan.ops)):
        for depth in _AHEAD:
            yield _changed(plan, lambda how, depth=depth: _run_ahead(how, depth))  # type: ignore[misc]


def _plainer(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
    """Single decisions of rules taken back, for an operator each: what a rule allows need not pay."""
    for node in everything(plan.ops):
        match node.how:
            case GenerateHow(share=True, run_ahead=0) as how if how.vote is None:
                yield _with(plan, node.id, replace(how, share=False))
            case ScoreHow(share=True) as how:
                yield _with(plan, node.id, replace(how, share=False))


def _run_ahead(how: How, depth: int) -> How:
    return replace(how, run_ahead=depth) if isinstance(how, GenerateHow) and how.run_ahead else how


def _with(plan: PhysicalPlan, id: str, how: How) -> PhysicalPlan:
    return replace(
        plan, ops=tuple(_mapped(node, lambda other: how if other.id == id else other.how) for node in plan.ops)
    )


def _changed(plan: PhysicalPlan, change: Callable[[How], How]) -> PhysicalPlan:
    def changed(node: PhysicalOp) -> How | None:
        return None if node.how is None else change(node.how)

    return replace(plan, ops=tuple(_mapped(node, changed) for node in plan.ops))


def _mapped(node: PhysicalOp, how_of: Callable[[PhysicalOp], How | None]) -> PhysicalOp:
    how = how_of(node)
    return replace(
        node,
        how=how,
        implementation=node.implementation if how == node.how else implementation(node.op, how),
        body=tuple(_mapped(inner, how_of) for inner in node.body),
        arms=tuple(tuple(_mapped(inner, how_of) for inner in arm) for arm in node.arms),
    )
