"""What a program under `within budget(…)` decides by: which of several strategies a problem is tried by, and when.

A *strategy* is one arm of a `strategy` with a width for everything that is left open by `auto`. Each strategy is a
program of its own, with fixed widths. A problem is tried by the first strategy; how sure that strategy is of its answer
(see `InstanceResult.support`) says whether it ends there or is tried by another strategy, and so on. So a policy is a
table, and what it decides depends on the problem alone: not on other rows, on when they end, or on what was spent so
far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from qpdsl.grammar import ast


@dataclass(frozen=True, slots=True)
class FixedStrategy:
    """`arm` counts the arms of the `strategy` from 0; `widths` are the values of what is open in it, as written.

    `name` is what people call it, such as `rebase(budget=16)`.
    """

    arm: int
    widths: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What follows a strategy, by how sure it was: `cuts` are ascending bounds of support, `next` what is between them.

    With support below cuts[0] goes on by next[0], from there to below cuts[1] by next[1], and so on; `next` has one
    entry more than `cuts`. An entry is the number of a strategy, or None to end with the answer that there is.
    """

    cuts: tuple[float, ...]
    next: tuple[int | None, ...]

    def __post_init__(self) -> None:
        _require(len(self.next) == len(self.cuts) + 1, "a turn says what follows on each side of its cuts")
        _require(list(self.cuts) == sorted(self.cuts), "the cuts of a turn ascend")

    def after(self, support: float | None) -> int | None:
        """The strategy to go on by; an answer of which nothing is known counts as unsure."""
        known = float("-inf") if support is None else support
        return self.next[sum(known >= cut for cut in self.cuts)]


@dataclass(frozen=True, slots=True)
class Promise:
    """What a test of policies on problems of their own came to: `right` of `problems` under the one that was tested.

    The target is a share `accuracy` of right answers, with `delta` the probability at most that what is promised does
    not hold. `needed` is the least number of `problems` that shows it, None where not even all would. `learned` counts
    the problems that the policies were learned from, which are others. `spends` is what a problem took in the test, in
    the unit of the policy. Where `kept` is not set, the target was given up, or nothing shows that it is reached.
    """

    accuracy: float
    delta: float
    right: int
    problems: int
    needed: int | None
    learned: int
    spends: float | None
    kept: bool

    @property
    def certified(self) -> bool:
        """Whether the test shows that the policy reaches the target."""
        return self.needed is not None and self.right >= self.needed


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """`ways` are all that the program leaves open, `first` the number of the one to begin with.

    `turns` has, by the number of a strategy, what follows it; after one that is not there a problem ends. `unit` is
    what `budget` counts, a mean over problems. `expected` is the share of right answers to expect and `spends` what a
    problem takes on average, both None where no run with right answers was there to learn from; `learned_from` says in
    words what it was learned from. `between` is the 95% interval of `expected`. `keeps` says whether the budget is
    likely kept: False where no strategy is thought to keep it, None where nothing is known of what strategies take.
    `budget` is None where a share of right answers was asked for and no limit; `promise` is what became of that share,
    None where none was asked for.
    """

    ways: tuple[FixedStrategy, ...]
    first: int
    turns: Mapping[int, Turn]
    unit: str
    budget: float | None
    expected: float | None
    spends: float | None
    learned_from: str
    between: tuple[float, float] | None = None
    keeps: bool | None = True
    promise: Promise | None = None

    def __post_init__(self) -> None:
        numbers = {self.first, *(way for turn in self.turns.values() for way in turn.next if way is not None)}
        _require(all(0 <= number < len(self.ways) for number in numbers), "a policy names a strategy it lacks")
        _require(all(way is None or way > own for own, turn in self.turns.items() for way in turn.next), "turns go on")

    def is_for(self, budget: ast.Budget) -> bool:
        """Whether it was learned for this budget."""
        own = None if self.promise is None else (self.promise.accuracy, self.promise.delta)
        asked = None if budget.accuracy is None else (budget.accuracy, budget.delta)
        return (self.unit, self.budget, own) == (budget.unit, budget.amount, asked)

    @property
    def counted(self) -> str:
        """The unit in words."""
        return self.unit.replace("_", " ")

    def to_json(self) -> dict[str, Any]:
        return {
            "ways": [{"arm": way.arm, "widths": list(way.widths), "name": way.name} for way in self.ways],
            "first": self.first,
            "turns": {str(own): {"cuts": turn.cuts, "next": turn.next} for own, turn in self.turns.items()},
            "unit": self.unit,
            "budget": self.budget,
            "expected": self.expected,
            "spends": self.spends,
            "learned_from": self.learned_from,
            "between": self.between,
            "keeps": self.keeps,
            **({} if self.promise is None else {"promise": asdict(self.promise)}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BudgetPolicy:
        """The policy that `to_json` wrote. Raises KeyError, TypeError and ValueError."""
        ways = tuple(FixedStrategy(way["arm"], tuple(way["widths"]), way["name"]) for way in values["ways"])
        turns = {int(own): Turn(tuple(turn["cuts"]), tuple(turn["next"])) for own, turn in values["turns"].items()}
        rest = {name: values[name] for name in ("first", "unit", "budget", "expected", "spends", "learned_from")}
        between = values.get("between")
        promise = values.get("promise")
        return cls(
            ways=ways,
            turns=turns,
            between=None if between is None else tuple(between),
            keeps=values.get("keeps", True),
            promise=None if promise is None else Promise(**promise),
            **rest,
        )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def policy_lines(policy: BudgetPolicy) -> list[str]:
    """The budget, the strategy that is tried first, what follows each strategy, and what is expected of it all."""
    lines = [_asked_words(policy)]
    pending, seen = [policy.first], set[int]()
    while pending:
        number = pending.pop(0)
        seen.add(number)
        turn = policy.turns.get(number)
        lead = f"first {policy.ways[number].name}" if number == policy.first else f"after {policy.ways[number].name}"
        if turn is not None:
            following = [after for after in dict.fromkeys(turn.next) if after is not None]
            pending += [after for after in following if after not in seen and after not in pending]
        if turn is not None or number == policy.first:
            lines.append(lead + ("" if turn is None else f"; {_turn_words(policy, turn)}"))
    return [*lines, *_promise_lines(policy)]


def doubt(policy: BudgetPolicy) -> str | None:
    """What to say before a run that may not keep its budget; None where it likely does."""
    if policy.promise is not None and not policy.promise.kept:
        return f"warning: {_unkept_words(policy, policy.promise)}"
    if policy.keeps or policy.budget is None:
        return None
    budget = f"the budget of {policy.budget:,.6g} {policy.counted} a problem"
    way = f"`{policy.ways[policy.first].name}` runs"
    if policy.keeps is None:
        return f"note: {way}, and whether it keeps {budget} is not known: {policy.learned_from}"
    return f"warning: {way}, which may not keep {budget}: {policy.learned_from}"


def _turn_words(policy: BudgetPolicy, turn: Turn) -> str:
    """What follows a strategy, such as `support < 0.93: rebase(budget=16); else end`. Equal parts are one."""
    bounds = [(cut, after) for cut, after in zip(turn.cuts, turn.next, strict=False)]
    merged = [(cut, after) for (cut, after), (_, later) in pairwise([*bounds, (0.0, turn.next[-1])]) if after != later]
    words = [f"support < {cut:.4g}: {_way(policy, after)}" for cut, after in merged]
    last = _way(policy, turn.next[-1])
    return "; ".join([*words, f"else {last}"]) if words else f"then {last}"


def _way(policy: BudgetPolicy, number: int | None) -> str:
    return "end" if number is None else policy.ways[number].name


def _asked_words(policy: BudgetPolicy) -> str:
    limit = "" if policy.budget is None else f"{policy.budget:,.6g} {policy.counted} a problem"
    if policy.promise is None:
        return f"budget: {limit}, on average over problems"
    words = f"target: {_share(policy.promise.accuracy)} right for the least {policy.counted}, on average over problems"
    return words if policy.budget is None else f"{words}, or else the most right within {limit}"


def _promise_lines(policy: BudgetPolicy) -> list[str]:
    """What is expected, and where a share of right answers was asked for what is promised of it and what is not."""
    promise = policy.promise
    if promise is None:
        return [_expected_words(policy)]
    if not promise.kept:
        return [_unkept_words(policy, promise), _expected_words(policy)]
    return [
        f"promised: {_share(promise.accuracy)} right or more, with probability {_share(1 - promise.delta)} "
        f"(δ = {promise.delta:g}): {_tested_words(promise)}, at {promise.spends:,.4g} {policy.counted} a problem",
        f"learned from {policy.learned_from}, none of which was in the test",
        "not promised: as many right of problems of another kind or difficulty, or each problem, or what it takes; "
        "another target or test on these runs has a δ of its own",
    ]


def _unkept_words(policy: BudgetPolicy, promise: Promise) -> str:
    share = _share(promise.accuracy)
    if promise.certified:
        takes = f"takes {promise.spends:,.4g} {policy.counted} a problem ({_tested_words(promise)})"
        return f"given up: {share} right {takes}; the limit is kept, and nothing is promised"
    tested = (
        f"{_tested_words(promise)} (δ = {promise.delta:g})"
        if promise.problems
        else "no saved rows are left to test it on"
    )
    instead = "the most expensive strategy is run" if policy.budget is None else "it is given up for the limit"
    return f"not promised: {share} right: {tested}; {instead}"


def _tested_words(promise: Promise) -> str:
    tested = f"{promise.right:,} of {promise.problems:,} held-out problems were right"
    return f"{tested}, {'more than these' if promise.needed is None else f'{promise.needed:,}'} needed"


def _share(share: float) -> str:
    return f"{100 * share:.6g}%"


def _expected_words(policy: BudgetPolicy) -> str:
    """What is expected, and by what; where nothing was learned, that alone."""
    if policy.expected is None:
        return policy.learned_from
    words = f"expected: {policy.expected:.1%} right"
    if policy.between is not None:
        words += f" ({policy.between[0]:.1%} to {policy.between[1]:.1%})"
    if policy.spends is not None:
        words += f" at {policy.spends:,.4g} {policy.counted} a problem"
    return f"{words}; learned from {policy.learned_from}"
