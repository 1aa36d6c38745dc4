"""Ways to decode that change tokens, with what was measured of each: what `within epsilon` and `within loss` permit.

No rule takes such a way, since no rule may change what an operator means. A program that permits a loss is offered, for
each `generate` without a `via` of its own, those ways that somebody measured: early exits by a head that `qpdsl
calibrate` fitted, with the agreement that it found on text kept apart, and filters by a smaller model of the program,
with what earlier runs of them came to. A loss is a share of draws whose token changes, all tokens before it the same.
Of n draws one more than was seen counts, so that few draws prove little.

Runs that take such a way see by shadows how often it changes a token (`planner/cost/statistics.py`). What they saw
joins what was measured before, where it could be the same by chance, and else takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qpdsl.grammar import ast
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.statistics import ProgramStatistics, Statistics, WayLoss, seen, way_key
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan, Equivalence, TokenCost
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, Tolerance, everything
from qpdsl.planner.plan.rule import Alternative, Knob, map_operators, operator_pairs

_WAY = "way to decode"
AS_WRITTEN = "as written"
_LOOSER: Mapping[Equivalence, int] = {"exact": 0, "epsilon": 1, "lossy": 2}


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """A way to decode with a model (its name in the program; empty for any that writes).

    `operator` is the only operator (id) that it is for, empty for any. `loss` is the share of draws that change, None
    where nobody measured it; for a way that is certified `epsilon` says what it keeps to instead. `cost` is what a
    token takes with it. `words` says the way, `measured` what was measured and where, and `draws` over how many draws.
    Of ways of one `kind` the cheapest that is permitted is the one to have.
    """

    model: str
    via: ops.Via
    loss: float | None
    cost: TokenCost
    words: str
    measured: str
    kind: str
    epsilon: float | None = None
    operator: str = ""
    draws: float = 0.0

    @property
    def equivalence(self) -> Equivalence:
        return "lossy" if self.epsilon is None else "epsilon"

    def permits(self, within: Tolerance) -> bool:
        """Whether a program permits it, as far as it is known."""
        if within.bound is None:
            return False
        if within.level == "epsilon":
            return self.epsilon is not None and self.epsilon <= within.bound
        return within.level == "loss" and self.loss is not None and self.loss <= within.bound


def filter_ways(plan: PhysicalPlan, statistics: Statistics) -> tuple[MeasuredWay, ...]:
    """Filters in the place of what each `generate` does, as far as earlier runs saw what they lose.

    With a draft by a small model they have checked what it draws. It draws with the same noise for either, so the share
    of its tokens that did not stand is the share of draws that change if all of its tokens do; no threshold changes
    more. Of other thresholds, and of other models that the program has, they know what their shadows saw.
    """
    entry = statistics.of(plan) or statistics.like(plan)
    ways: list[MeasuredWay] = []
    for node in everything(plan.ops):
        op = node.op
        if not isinstance(op, ops.Generate) or op.via is not None:
            continue
        drafted = None if entry is None else _drafted(node.id, op, entry)
        smaller = [name for name in plan.models if name != op.model.name]
        for model, threshold in ((model, threshold) for model in smaller for threshold in (0.0, *ops.THRESHOLDS)):
            via = _filter(model, threshold, op)
            words, kind = f"filter({model}, {threshold})", f"filter {node.id}"
            way = drafted if drafted is not None and drafted.via == via else None
            way = way or MeasuredWay(op.model.name, via, None, TokenCost(small=1.0), words, "", kind, operator=node.id)
            loss = statistics.loss(plan, node.id, way_key(via, plan))
            if loss is not None:
                cost = TokenCost(large=1 - loss.share if threshold else 0.0, small=1.0)
                ways.append(replace(_joined(way, loss), cost=cost))
            elif way is drafted:
                ways.append(way)
    return tuple(ways)


def _filter(model: str, threshold: float, op: ops.Generate) -> ops.Filter:
    return ops.Filter(ast.model_named(model, op.span), ast.Literal(threshold, span=op.span), span=op.span)


def _drafted(id: str, op: ops.Generate, entry: ProgramStatistics) -> MeasuredWay | None:
    """The small model by itself, where it drafted and its tokens were checked."""
    figures = entry.operators.get(id)
    if op.draft is None or op.draft.model is None or op.draft.method != "model" or op.draft.branches > 1 or not figures:
        return None
    accepted, rejected = (figures.count(f"model_{what}") * entry.problems for what in ("accepted", "rejected"))
    if not accepted + rejected:
        return None
    via = _filter(op.draft.model, 0.0, op)
    loss, draws = seen(rejected, accepted + rejected), accepted + rejected
    measured = f"{loss:.2%} of {draws:,.0f} draws change, by earlier runs with `draft {op.draft.model}`"
    words, cost = f"filter({op.draft.model}, 0.0)", TokenCost(large=0.0, small=1.0)
    return MeasuredWay(op.model.name, via, loss, cost, words, measured, f"filter {id}", operator=id, draws=draws)


def with_shadows(ways: Sequence[MeasuredWay], plan: PhysicalPlan, statistics: Statistics) -> tuple[MeasuredWay, ...]:
    """The ways, each with what earlier runs saw by shadows at the operators that took it."""
    found: list[MeasuredWay] = []
    for way in ways:
        key = way_key(way.via, plan)
        own = {
            node.id: statistics.loss(plan, node.id, key)
            for node in everything(plan.ops)
            if isinstance(node.op, ops.Generate) and way.model in ("", node.op.model.name)
        }
        if way.epsilon is not None or not any(own.values()):
            found.append(way)
            continue
        for id, loss in own.items():
            at = replace(way, operator=id, kind=f"{way.kind} at {id}")
            found.append(at if loss is None else _joined(at, loss))
    return tuple(found)


def _joined(way: MeasuredWay, loss: WayLoss) -> MeasuredWay:
    """The way by what was measured of it and what shadows saw.

    Both count as one sample where the former lies in the interval that the latter leaves, and else the latter alone.
    """
    least, most = loss.bounds()
    shadows = f"{loss.differed:,.0f} of {loss.shadowed:,.0f} shadowed draws differ, {loss.share:.0%} are early"
    if way.loss is not None and least <= way.loss <= most:
        # A shadowed draw stands for those beside it that were never early.
        draws, changed = loss.shadowed / loss.share, way.loss * (way.draws + 1) - 1
        together = seen(changed + loss.differed, way.draws + draws)
        measured = f"{together:.2%} of draws change: {way.measured}; {shadows}, by earlier runs"
        return replace(way, loss=together, measured=measured, draws=way.draws + draws)
    measured = f"{loss.loss():.2%} of draws change: {shadows}, by earlier runs"
    measured += f" (before: {way.measured})" if way.measured else ""
    return replace(way, loss=loss.loss(), measured=measured, draws=loss.shadowed)


def offered(ways: Sequence[MeasuredWay], within: Tolerance) -> tuple[MeasuredWay, ...]:
    """Of each model and kind the cheapest way that is permitted, and the cheapest that is not, to say why.

    A way costs no less for being surer, so the others cannot win.
    """
    best: dict[tuple[str, str, bool], MeasuredWay] = {}
    for way in ways:
        key = (way.model, way.kind, way.permits(within))
        if key not in best or _price(way) < _price(best[key]):
            best[key] = way
    # A refused way that costs more than the permitted one tells nothing.
    return tuple(
        way
        for (model, kind, permitted), way in best.items()
        if permitted or (model, kind, True) not in best or _price(way) < _price(best[model, kind, True])
    )


def _price(way: MeasuredWay) -> float:
    return way.cost.large


@dataclass(frozen=True, slots=True)
class Losses:
    """What the plans of one program lose, as far as it was measured.

    `ways` are those on offer. `kept` says of keys and values in other types by how much logits were seen to differ, and
    what share of draws changed, None where not known: for all of the program's models together.
    """

    ways: Mapping[ops.Via, MeasuredWay] = field(default_factory=dict)
    kept: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, ways: Iterable[MeasuredWay], models: Sequence[str], device: Device) -> Losses:
        """`models` are those whose keys and values may be kept otherwise, none where that is not to be chosen."""
        worst = sorted(ways, key=lambda way: way.loss or 0.0)
        return cls({way.via: way for way in worst}, _kept(models, device))

    def epsilon(self, plan: PhysicalPlan) -> float | None:
        """The most by which logits were seen to differ, None where they do not."""
        found = [way.epsilon for way in self._taken(plan) if way.epsilon is not None]
        if plan.kv_type is not None:
            found.append(self.kept[plan.kv_type][0])
        return sum(found) if found else None

    def loss(self, plan: PhysicalPlan) -> float | None:
        """The share of draws whose token changes, at the worst operator; None where nobody knows it."""
        losses = [way.loss for way in self._taken(plan)]
        kept = 0.0 if plan.kv_type is None else self.kept[plan.kv_type][1]
        known = [loss for loss in losses if loss is not None]
        return None if kept is None or len(known) < len(losses) else max(known, default=0.0) + kept

    def _taken(self, plan: PhysicalPlan) -> list[MeasuredWay]:
        """The ways that the plan has beside those that are written in the program."""
        if not plan.ways:
            return []
        chosen = [node.op for node in everything(plan.ops) if node.id in plan.ways]
        return [self.ways[op.via] for op in chosen if isinstance(op, ops.Generate) and op.via is not None]


def _kept(models: Sequence[str], device: Device) -> dict[str, tuple[float, float | None]]:
    profiles = [device.models.get(model) for model in models]
    types = {kv_type for profile in profiles if profile is not None for kv_type in profile.kv_types}
    kept: dict[str, tuple[float, float | None]] = {}
    for kv_type in sorted(types):
        known = [profile.kv_types.get(kv_type) if profile is not None else None for profile in profiles]
        measured = [profile for profile in known if profile is not None]
        if len(measured) < len(known):
            continue
        losses = [profile.loss for profile in measured if profile.loss is not None]
        loss = sum(losses) if len(losses) == len(measured) else None
        kept[kv_type] = max(profile.epsilon for profile in measured), loss
    return kept


def alternatives(plan: PhysicalPlan, ruled: PhysicalPlan, ways: Sequence[MeasuredWay]) -> Iterator[Alternative]:
    """Each `generate` that says nothing of how it decodes, as `ruled` has it and in each of these ways."""
    if not ways:
        return
    for node, written in operator_pairs(plan, ruled):
        if not isinstance(written.op, ops.Generate) or written.op.via is not None:
            continue
        offers = [(way, changed) for way in ways if (changed := _in_way(node, written, way)) is not None]
        if offers:
            knob = Knob(_WAY, "generate", node.id)
            plain = node if node.op == written.op else _as_written(node, written)
            yield Alternative(knob, AS_WRITTEN, _with(plan, ruled, plain))
            for way, changed in offers:
                yield Alternative(knob, way.words, _with(plan, ruled, changed, way), way.measured)


def _in_way(node: PhysicalOp, written: PhysicalOp, way: MeasuredWay) -> PhysicalOp | None:
    """The operator, to be decoded in that way; None where it cannot be."""
    op, strategy = written.op, node.strategy
    assert isinstance(op, ops.Generate) and isinstance(strategy, GenerateStrategy)
    assert isinstance(written.strategy, GenerateStrategy)
    # Of tokens that come from more than one distribution no figures are told.
    if strategy.figures or written.strategy.figures:
        return None
    if way.model not in ("", op.model.name) or way.operator not in ("", node.id) or not written.strategy.decode.whole:
        return None
    # Only samples that one request draws whole run ahead, and go to a vote one by one.
    if isinstance(way.via, ops.Filter) and (written.strategy.speculates or written.strategy.vote is not None):
        return None
    changed = replace(op, via=way.via, draft=None)
    decode = replace(DecodePlan.plainest(changed), constraint=written.strategy.decode.constraint)
    decode = replace(decode, filter="cached") if isinstance(way.via, ops.Filter) else replace(decode, head="deferred")
    return replace(node, op=changed, strategy=replace(strategy, decode=decode), equivalence=way.equivalence)


def _as_written(node: PhysicalOp, written: PhysicalOp) -> PhysicalOp:
    assert isinstance(node.strategy, GenerateStrategy) and isinstance(written.strategy, GenerateStrategy)
    strategy = replace(node.strategy, decode=written.strategy.decode)
    return replace(node, op=written.op, strategy=strategy, equivalence=written.equivalence)


def _with(plan: PhysicalPlan, ruled: PhysicalPlan, changed: PhysicalOp, way: MeasuredWay | None = None) -> PhysicalPlan:
    """The plan with that operator in the place of the one of its id, and what it keeps to then."""
    other = map_operators(plan, lambda node: changed if node.id == changed.id else node)
    chosen = {id: measured for id, measured in plan.ways.items() if id != changed.id}
    if way is not None:
        chosen[changed.id] = way.measured
    kept = [*(node.equivalence for node in everything(other.ops)), ruled.equivalence]
    kept += ["epsilon"] if plan.kv_type is not None else []
    return replace(other, ways=chosen, equivalence=max(kept, key=_LOOSER.__getitem__))
