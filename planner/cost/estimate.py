"""What a plan is expected to take: tokens, KV memory and seconds, by operator and in all.

Tokens follow from cardinalities and strategies (`cardinality.py`, `demand.py`). Seconds follow from how full the
forwards are and what the device takes for one (`timing.py`, `device.py`). Where the program ran before on this device,
seconds are multiplied by the ratio of what those runs took to what was predicted for them. Operators of models on
servers take no forwards here; they wait as long as earlier runs did (`server_times.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qpdsl.grammar.model_id import is_remote
from qpdsl.grammar.words import CPU_SPARE_ROWS
from qpdsl.planner.cost.cardinality import Cardinalities, cardinalities
from qpdsl.planner.cost.demand import Demand, demands_of, executed
from qpdsl.planner.cost.device import Device, DeviceSource
from qpdsl.planner.cost.statistics import Statistics, clock_key
from qpdsl.planner.cost.timing import ModelTiming, RunLoad, Timing, idleness, timing_of
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import Cost, GenerateStrategy, PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.rule import map_operators
from qpdsl.planner.values.value import Value


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate for a whole load.

    `costs` and `rows` are by operator, over all problems. `rounds` are those of each `repeat`, for one problem.
    `seconds` is None where a plan asks a server that nobody measured. `models` holds the forwards of each model of this
    machine. `source` says what the cardinalities are based on. `clock` is the factor
    that earlier runs put on the seconds, None where there were none. `device` says where the device's figures come
    from.
    """

    seconds: float | None
    costs: Mapping[str, Cost]
    rows: Mapping[str, float]
    rounds: Mapping[str, float]
    models: Mapping[str, ModelTiming]
    source: str
    clock: float | None
    device: DeviceSource
    load: RunLoad = field(default_factory=RunLoad)
    in_flight: float = 1.0

    @property
    def kv_bytes(self) -> float:
        return sum(model.kv_bytes for model in self.models.values())


def estimate_cost(plan: PhysicalPlan, device: Device, statistics: Statistics, load: RunLoad | None = None) -> Estimate:
    """The cost of running a plan. Where the load does not say how many problems are in flight, the plan does."""
    return estimate_known(plan, device, cardinalities(plan, statistics), load or RunLoad())


def estimate_known(plan: PhysicalPlan, device: Device, cards: Cardinalities, load: RunLoad) -> Estimate:
    """As `estimate_cost`, with known cardinalities: they depend on the operators, not on how these are run."""
    model = CostModel(device, cards, load)
    plan_timing = model.timing(plan)
    timing = plan_timing.timing
    waits = _waits(plan_timing, cards)
    waited = None if None in waits.values() else sum(wait for wait in waits.values() if wait is not None)
    return Estimate(
        # Problems that run at once wait at once.
        None if waited is None else timing.seconds * model.factor + waited * load.problems / plan_timing.flight,
        _costs(plan_timing.demands, timing.models, waits, load.problems, model.factor),
        {node.id: cards.of[node.id].rows_out * load.problems for node in everything(plan.ops)},
        {
            node.id: cards.of[node.body[0].id].runs
            for node in everything(plan.ops)
            if isinstance(node.op, ops.Repeat | ops.Search) and node.body
        },
        timing.models,
        cards.source,
        model.clock,
        device.source(timing.models),
        load,
        plan_timing.flight,
    )


def with_costs(plan: PhysicalPlan, estimate: Estimate) -> PhysicalPlan:
    """The plan with the cost of one of the problems on every operator that calls a model, and on what contains it."""
    problems = max(estimate.load.problems, 1)
    costs = {id: Cost.of([cost], problems) for id, cost in estimate.costs.items()}
    return map_operators(plan, lambda node: _costed(node, costs))


@dataclass(frozen=True, slots=True)
class PlanTiming:
    """The `timing` of a plan that makes these `demands`, with `flight` problems running at once."""

    demands: tuple[Demand, ...]
    flight: float
    timing: Timing


class CostModel:
    """The time that the plans of one program take on a device; the plans differ in how the operators are run.

    `clock` is the ratio of measured to predicted seconds in earlier runs, None where there were none. `factor` is what
    seconds are multiplied by: `clock`, or 1.
    """

    def __init__(self, device: Device, cards: Cardinalities, load: RunLoad) -> None:
        self._device, self._cards, self._load = device, cards, load
        clocks = cards.statistics.clock if cards.statistics is not None else {}
        self.clock = clocks.get(clock_key(device))
        self.factor = self.clock or 1.0
        # Plans that differ in joint knobs alone share their operators, and most others share all but one. The operators
        # are kept with their demands, so that no other plan's can get the same id.
        self._of_nodes: dict[tuple[int, float], tuple[PhysicalOp, list[Demand]]] = {}
        self._work: dict[tuple[int, float], tuple[object, _Work]] = {}
        self._seconds: dict[tuple[int, float, float, str | None], float] = {}
        self._values: Mapping[str, Value] | None = None

    def seconds(self, plan: PhysicalPlan) -> float:
        """The seconds of the whole load."""
        work, flight, idle = self._schedule(plan)
        key = (id(plan.ops), flight, idle, plan.kv_type)
        if key not in self._seconds:
            self._seconds[key] = self._timing(plan, work, flight).seconds * self.factor
        return self._seconds[key]

    def timing(self, plan: PhysicalPlan) -> PlanTiming:
        work, flight, _ = self._schedule(plan)
        return PlanTiming(work.demands, flight, self._timing(plan, work, flight))

    def _schedule(self, plan: PhysicalPlan) -> tuple[_Work, float, float]:
        """The work, the problems in flight, and the share of time when samples may run ahead."""
        work = self._work_of(plan, 0.0)
        flight = _flight(plan, work, self._load)
        if not work.ahead:
            return work, flight, 0.0
        # With fewer sequences there is room for samples to run ahead.
        floor = min(plan.floor, CPU_SPARE_ROWS) if self._device.kind == "cpu" else plan.floor
        longest, problems = self._cards.longest, self._load.problems
        idle = round(idleness(work.turns, work.drawn, flight, longest, problems, floor), 3)
        return (self._work_of(plan, idle) if idle else work), flight, idle

    def _work_of(self, plan: PhysicalPlan, idle: float) -> _Work:
        key = (id(plan.ops), idle)
        if key not in self._work:
            nodes = list(executed(plan.ops))
            rows = sum(self._cards.of[node.id].rows_out for node in nodes if not node.body and not node.arms)
            found = tuple(demand for node in nodes for demand in self._of_node(plan, node, idle))
            self._work[key] = plan.ops, _Work.of(found, rows, any(map(_runs_ahead, nodes)))
        return self._work[key][1]

    def _of_node(self, plan: PhysicalPlan, node: PhysicalOp, idle: float) -> list[Demand]:
        key = (id(node), idle if _runs_ahead(node) else 0.0)
        if key not in self._of_nodes:
            if self._values is None:
                self._values = plan.values()
            own = demands_of(node, plan.models, self._values, self._cards, idle, self._device)
            self._of_nodes[key] = node, own
        return self._of_nodes[key][1]

    def _timing(self, plan: PhysicalPlan, work: _Work, flight: float) -> Timing:
        load = replace(self._load, kv_type=plan.kv_type) if plan.kv_type is not None else self._load
        here = [demand for demand in work.demands if not is_remote(demand.model)]
        return timing_of(here, flight, work.rows, self._cards.longest, self._device, load)


@dataclass(frozen=True, slots=True)
class _Work:
    """What the operators of a plan demand for a problem, which has them make `rows`.

    They take `turns` of the device, with `sequences` side by side on average. The model that draws most draws `drawn`
    tokens. `ahead`: some samples may run ahead.
    """

    demands: tuple[Demand, ...]
    rows: float
    turns: float
    sequences: float
    drawn: float
    ahead: bool

    @classmethod
    def of(cls, demands: tuple[Demand, ...], rows: float, ahead: bool) -> _Work:
        turns = sum(demand.steps + demand.waves for demand in demands)
        sequences = sum(demand.sequences * (demand.steps + demand.waves) for demand in demands)
        drawn: dict[str, float] = {}
        for demand in demands:
            drawn[demand.model] = drawn.get(demand.model, 0.0) + demand.sampled
        most = max(drawn.values(), default=0.0)
        return cls(demands, rows, turns, sequences / turns if turns else 0.0, most, ahead)


def _runs_ahead(node: PhysicalOp) -> bool:
    return isinstance(node.strategy, GenerateStrategy) and node.strategy.speculates


def _flight(plan: PhysicalPlan, work: _Work, load: RunLoad) -> float:
    """How many problems run at once: one more starts while fewer sequences than the floor are at work."""
    if load.in_flight is not None:
        return float(max(1, min(load.in_flight, load.problems)))
    most = max(1, min(plan.in_flight or 1, load.problems))
    if not plan.floor or not work.turns:
        return float(most)
    return min(float(most), max(1.0, plan.floor / max(work.sequences, 1e-9)))


def _waits(plan_timing: PlanTiming, cards: Cardinalities) -> dict[str, float | None]:
    """By operator that asks a server, the seconds that it waits for it in one problem; None where nobody knows."""
    waits: dict[str, float | None] = {}
    for demand in plan_timing.demands:
        if not is_remote(demand.model):
            continue
        card, times = cards.of[demand.operator], cards.servers.get(demand.model)
        seen = None if times is None else times.at(plan_timing.flight)
        wait = None if seen is None else seen.wait(card.longest)
        waits[demand.operator] = None if wait is None else wait * card.runs
    return waits


def _costs(
    plan_demands: tuple[Demand, ...],
    models: Mapping[str, ModelTiming],
    waits: Mapping[str, float | None],
    problems: int,
    factor: float,
) -> dict[str, Cost]:
    """By operator, by the rule of EXPLAIN ANALYZE: a model's time is charged by its tokens of either kind."""
    costs: dict[str, Cost] = {}
    for demand in plan_demands:
        if demand.model in models:
            added: float | None = _forward_seconds(demand, plan_demands, models[demand.model]) * factor
        else:
            wait = waits[demand.operator]
            added = None if wait is None else wait * problems
        own = Cost(added, demand.prompt * problems, demand.cached * problems, demand.sampled * problems)
        costs[demand.operator] = Cost.of([costs[demand.operator], own]) if demand.operator in costs else own
    return costs


def _forward_seconds(demand: Demand, plan_demands: tuple[Demand, ...], timing: ModelTiming) -> float:
    """Its part of the seconds of its model's forwards."""
    same_model = [other for other in plan_demands if other.model == demand.model]
    computed = sum(other.computed for other in same_model)
    sampled = sum(other.sampled for other in same_model)
    seconds = timing.prefill_seconds * demand.computed / computed if computed else 0.0
    return seconds + (timing.decode_seconds * demand.sampled / sampled if sampled else 0.0)


def _costed(node: PhysicalOp, costs: Mapping[str, Cost]) -> PhysicalOp:
    """The operator with its cost; one that contains others, whose costs stand on them, costs the sum of theirs."""
    inner_costs = [inner.cost for chain in node.inside for inner in chain if inner.cost is not None]
    return replace(node, cost=Cost.of(inner_costs) if inner_costs else costs.get(node.id))
