"""The driver of the rules: it runs them in order until nothing changes, and verifies what they made.

Every rule is timed and can be switched off; every plan that a rule made is verified. A rule that raises, makes an
invalid plan or never stops changing the plan is a fault of the planner, and raises `InvalidPlan` with the rule's name.
(The drivers of DuckDB and DataFusion have the same shape, but skip such a rule.) The passes end when a plan comes
back, which is recognized by its signature, a digest of what the plan does.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

from qpdsl.planner.optimize.plan_candidate import PlanChoice
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.ops import InvalidPlan
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Rule
from qpdsl.planner.plan.verify import verify_physical
from qpdsl.planner.rules import RULES

# Every rule comes to rest in a pass or two; one that still changes the plan after these never will.
_MAX_PASSES = 16


@dataclass(frozen=True, slots=True)
class Change:
    """The plan after a rule that changed it."""

    rule: str
    plan: PhysicalPlan


@dataclass(frozen=True, slots=True)
class Optimized:
    """What became of a plan. `naive` is what the rules were given, `changes` what each made of it in turn.

    `seconds` holds for each rule, in order, how long it took in all passes; `disabled` those that were switched off;
    `choice` what was chosen by cost after them, None where nothing was; `settled` the plan as its user's settings have
    it, None where they say nothing of it.
    """

    naive: PhysicalPlan
    changes: tuple[Change, ...]
    seconds: Mapping[str, float]
    disabled: tuple[str, ...] = ()
    choice: PlanChoice | None = None
    settled: PhysicalPlan | None = None

    @property
    def plan(self) -> PhysicalPlan:
        """The plan to run."""
        if self.settled is not None:
            return self.settled
        if self.choice is not None:
            return self.choice.plan
        return self.changes[-1].plan if self.changes else self.naive


def optimize(naive: PhysicalPlan, disabled: Collection[str] = (), rules: Sequence[Rule] = RULES) -> Optimized:
    """Rewrites a plan by all rules but those `disabled`. Raises InvalidPlan, and ValueError for an unknown name."""
    unknown = set(disabled) - {rule.name for rule in rules}
    if unknown:
        raise ValueError(f"there is no rule {sorted(unknown)[0]}")
    verify_physical(naive)
    active = [rule for rule in rules if rule.name not in disabled]
    seconds = {rule.name: 0.0 for rule in active}
    changes: list[Change] = []
    current, met = naive, {signature(naive)}
    for _ in range(_MAX_PASSES):
        before = current
        for rule in active:
            start = time.perf_counter()
            changed = _applied(rule, current)
            seconds[rule.name] += time.perf_counter() - start
            if changed is current:
                continue
            mark = signature(changed)
            if mark == signature(current):
                continue
            if mark in met:
                return Optimized(naive, tuple(changes), seconds, tuple(disabled))
            met.add(mark)
            by = changed.rules if rule.name in changed.rules else (*changed.rules, rule.name)
            current = replace(changed, rules=by)
            changes.append(Change(rule.name, current))
        if current is before:
            return Optimized(naive, tuple(changes), seconds, tuple(disabled))
    raise InvalidPlan(f"the rules do not come to rest; the last to change the plan was `{changes[-1].rule}`")


def planned(
    program: LogicalProgram,
    reads: tuple[str, ...] | None = None,
    disabled: Collection[str] = (),
    *,
    naive: bool = False,
) -> PhysicalPlan:
    """The plan to run a program by. `reads`: see `PhysicalPlan`; `naive`: the plan that no rule has touched."""
    straight = plan(program, reads)
    return straight if naive else optimize(straight, disabled).plan


def _applied(rule: Rule, before: PhysicalPlan) -> PhysicalPlan:
    try:
        after = rule.apply(before)
        if after is not before:
            verify_physical(after)
    except Exception as error:  # whatever a rule raises, the plan that it was to make is not there
        raise InvalidPlan(f"rule `{rule.name}`: {type(error).__name__}: {error}") from error
    return after


def signature(plan: PhysicalPlan) -> str:
    """Equal for plans that run the same operators in the same way; estimates and the names of rules do not count."""
    joint = (plan.in_flight, plan.floor, plan.prompted, plan.kv_type, plan.support)
    whole = (_chain(plan.ops), sorted(plan.models.items()), plan.reads, joint, plan.equivalence)
    return blake2b(repr(whole).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def _chain(chain: tuple[PhysicalOp, ...]) -> list[object]:
    parts: list[object] = []
    before: Mapping[str, str] = {}
    for node in chain:
        parts.append(
            (
                node.id,
                type(node.op).__name__,
                [(part.name, getattr(node.op, part.name)) for part in fields(node.op) if part.compare],
                node.strategy,
                node.equivalence,
                _columns(node.columns, before),
                [_chain(inner) for inner in node.inside],
            )
        )
        before = node.columns
    return parts


def _columns(columns: Mapping[str, str], before: Mapping[str, str]) -> tuple[int, list[tuple[str, str]]]:
    """How many of the columns before these begin with, and the rest: all of each would make a long plan's a square."""
    names, kinds, count = list(columns), list(columns.values()), len(before)
    goes_on = names[:count] == list(before) and kinds[:count] == list(before.values())
    shared = count if goes_on else 0
    return shared, list(zip(names[shared:], kinds[shared:], strict=True))
