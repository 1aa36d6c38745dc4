"""What a plan is expected to take: tokens, KV memory and seconds, by operator and in all.

Tokens follow from cardinalities and strategies (`cardinality.py`, `work.py`), seconds from how full the forwards are
and what the device takes for one (`pace.py`, `device.py`). Where the program ran before on this device, seconds are
scaled by what they were then over what had been predicted: what the model of the cost does not know it learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qpdsl.planner.cost.cardinality import Cardinalities, cardinalities
from qpdsl.planner.cost.demand import Work, running, works
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.statistics import Statistics, clock_key
from qpdsl.planner.cost.timing import Load, ModelPace, Pace, idleness, pace
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import Cost, PhysicalOp, PhysicalPlan, everything


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a whole load. `costs` and `rows` are by operator, over all problems; `forwards` by model.

    `source` says what the cardinalities go by; `clock` is the factor that earlier runs put on the seconds, None where
    there were none; `measured` is false where the device's figures are nominal.
    """

    seconds: float
    costs: Mapping[str, Cost]
    rows: Mapping[str, float]
    rounds: Mapping[str, float]
    models: Mapping[str, ModelPace]
    source: str
    clock: float | None
    measured: bool
    load: Load = field(default_factory=Load)
    in_flight: float = 1.0

    @property
    def kv_bytes(self) -> float:
        return sum(model.kv_bytes for model in self.models.values())


def estimate_cost(plan: PhysicalPlan, device: Device, statistics: Statistics, load: Load | None = None) -> Estimate:
    """The cost of running a plan; where the load does not say how many problems are in flight the plan does."""
    return estimate_known(plan, device, cardinalities(plan, statistics), load or Load())


def estimate_known(plan: PhysicalPlan, device: Device, cards: Cardinalities, load: Load) -> Estimate:
    """As `estimate_cost`, where the cardinalities are known: they hang on the operators, not on how they run."""
    clock = Clock(device, cards, load)
    timing = clock.timing(plan)
    found, factor, problems = timing.pace, clock.factor, load.problems
    return Estimate(
        found.seconds * factor,
        _costs(timing.works, found.models, problems, factor),
        {node.id: cards.of[node.id].rows_out * problems for node in everything(plan.ops)},
        {node.id: cards.of[node.body[0].id].runs for node in everything(plan.ops) if isinstance(node.op, ops.Repeat)},
        found.models,
        cards.source,
        clock.measured,
        device.measured,
        load,
        timing.flight,
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """`flight` problems run at once, and come to that `pace` by doing these `works`."""

    works: tuple[Work, ...]
    flight: float
    pace: Pace


class Clock:
    """What plans of one program take, which differ in how they run. `factor` is by how much earlier runs were off."""

    def __init__(self, device: Device, cards: Cardinalities, load: Load) -> None:
        self._device, self._cards, self._load = device, cards, load
        known = cards.statistics.clock if cards.statistics is not None else {}
        self.measured = known.get(clock_key(device))
        self.factor = self.measured or 1.0
        # Plans that differ in joint knobs alone share their operators; those are kept, so that ids stay theirs.
        self._known: dict[tuple[int, float], tuple[object, tuple[Work, ...], float]] = {}
        self._seconds: dict[tuple[int, float, float, str | None], float] = {}

    def seconds(self, plan: PhysicalPlan) -> float:
        """For the whole load."""
        works_, rows, flight, idle = self._done(plan)
        key = (id(plan.ops), flight, idle, plan.kv_type)
        if key not in self._seconds:
            self._seconds[key] = self._paced(plan, works_, rows, flight).seconds * self.factor
        return self._seconds[key]

    def timing(self, plan: PhysicalPlan) -> Timing:
        works_, rows, flight, _ = self._done(plan)
        return Timing(works_, flight, self._paced(plan, works_, rows, flight))

    def _done(self, plan: PhysicalPlan) -> tuple[tuple[Work, ...], float, float, float]:
        """Works, the rows that are made, problems in flight, and the share of time in which samples may run ahead."""
        done, rows = self._works(plan, 0.0)
        flight = _flight(plan, done, self._load)
        # Below the plan's floor there is room for samples to run ahead.
        idle = round(idleness(done, flight, self._cards.longest, self._load.problems, plan.floor), 3)
        return (self._works(plan, idle)[0] if idle else done), rows, flight, idle

    def _works(self, plan: PhysicalPlan, idle: float) -> tuple[tuple[Work, ...], float]:
        key = (id(plan.ops), idle)
        if key not in self._known:
            own = (node for node in running(plan.ops) if not node.body and not node.arms)
            rows = sum(self._cards.of[node.id].rows_out for node in own)
            self._known[key] = plan.ops, works(plan, self._cards, idle), rows
        _, done, rows = self._known[key]
        return done, rows

    def _paced(self, plan: PhysicalPlan, done: tuple[Work, ...], rows: float, flight: float) -> Pace:
        load = replace(self._load, kv_type=plan.kv_type) if plan.kv_type is not None else self._load
        return pace(done, flight, rows, self._cards.longest, self._device, load)


def _flight(plan: PhysicalPlan, done: tuple[Work, ...], load: Load) -> float:
    """How many problems run at once: one more starts while fewer sequences than the floor are at work."""
    if load.in_flight is not None:
        return float(max(1, min(load.in_flight, load.problems)))
    most = max(1, min(plan.in_flight or 1, load.problems))
    turns = sum(work.steps + work.waves for work in done)
    if not plan.floor or not turns:
        return float(most)
    each = sum(work.sequences * (work.steps + work.waves) for work in done) / turns
    return min(float(most), max(1.0, plan.floor / max(each, 1e-9)))


def _costs(done: tuple[Work, ...], models: Mapping[str, ModelPace], problems: int, factor: float) -> dict[str, Cost]:
    """By operator, by the rule of EXPLAIN ANALYZE: a model's time goes by its tokens of either kind."""
    costs: dict[str, Cost] = {}
    for work in done:
        own = [other for other in done if other.model == work.model]
        pace_ = models[work.model]
        computed, sampled = sum(other.computed for other in own), sum(other.sampled for other in own)
        seconds = pace_.prefill_seconds * work.computed / computed if computed else 0.0
        seconds += pace_.decode_seconds * work.sampled / sampled if sampled else 0.0
        before = costs.get(work.operator, Cost(0.0, 0.0, 0.0, 0.0))
        costs[work.operator] = Cost(
            before.seconds + seconds * factor,
            before.prompt_tokens + work.prompt * problems,
            before.cached_tokens + work.cached * problems,
            before.sampled_tokens + work.sampled * problems,
        )
    return costs


def with_costs(plan: PhysicalPlan, estimate: Estimate) -> PhysicalPlan:
    """The plan with the cost of one of the problems on every operator that calls a model, and on what contains it."""
    count = max(estimate.load.problems, 1)
    costs = {
        id: Cost(
            cost.seconds / count,
            cost.prompt_tokens / count,
            cost.cached_tokens / count,
            cost.sampled_tokens / count,
        )
        for id, cost in estimate.costs.items()
    }
    return replace(plan, ops=tuple(_costed(node, costs) for node in plan.ops))


def _costed(node: PhysicalOp, costs: Mapping[str, Cost]) -> PhysicalOp:
    body = tuple(_costed(inner, costs) for inner in node.body)
    arms = tuple(tuple(_costed(inner, costs) for inner in arm) for arm in node.arms)
    inside = [inner.cost for chain in (body, *arms) for inner in chain if inner.cost is not None]
    cost = costs.get(node.id)
    if inside:
        cost = Cost(
            sum(each.seconds for each in inside),
            sum(each.prompt_tokens for each in inside),
            sum(each.cached_tokens for each in inside),
            sum(each.sampled_tokens for each in inside),
        )
    return replace(node, body=body, arms=arms, cost=cost)
