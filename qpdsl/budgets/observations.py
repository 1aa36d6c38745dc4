"""What saved runs show of the strategies of a program: what each gave for each problem, what it took, how sure it was.

The samples of `n=4` are the first four of `n=16`, so a strategy may draw all that a narrower one draws
(`nested_strategies`). So it is after a `split` as long as its copies never meet: a later `keep … per group` goes on
with some of a copy's own rows, and a `vote` at the end draws nothing. Where rows are compared with those of other
copies before more is drawn, which are kept depends on the width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import FixedStrategy
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import PhysicalOp, everything
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.fingerprint import Fingerprint, digest, operators
from qpdsl.runs.store.run_file import RunFile, RunFileError
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord, RunRecord

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]
UNSURE = float("-inf")

Chain = tuple[PhysicalOp, ...]
# What makes the rows of each row by itself, and draws the same whatever other rows there are.
_APART = (
    ops.SetContext,
    ops.Say,
    ops.Generate,
    ops.StepScore,
    ops.Judge,
    ops.Prob,
    ops.LogProb,
    ops.DrawScore,
    ops.Equal,
    ops.ValidJson,
    ops.Passes,
    ops.Extract,
)
# The parts of a fingerprint in which a run of a strategy may differ: none changes right answers or tokens on average.
_OPEN = {"seed", "version", "noise", "options"}
# What decides how long a strategy takes, and no more.
_SPEED = {"plan", "device", "dtype", "kv type", "router", "deterministic"}
# A row of a run: the key of its problem, and the run's seed.
RowOfRun = tuple[str, int]
_SPENDS: Mapping[str, Callable[[Outcome], float]] = {
    "tokens": lambda outcome: float(outcome.tokens_out),
    "thought_tokens": lambda outcome: float(outcome.thought_tokens),
    "seconds": lambda outcome: outcome.engine_seconds,
    "cost": lambda outcome: outcome.cost,
}


@dataclass(frozen=True, eq=False)
class Observations:
    """Runs of every strategy over the same rows: `correct`, `spend` and `support` are float64 [rows, strategies].

    `ways` ascend by their mean spend. `correct` is 1 or 0. `spend` is in the unit of a budget. `support` is UNSURE
    where a strategy does not say how sure it is. `problems` has the key of each row's problem: a problem that was run
    under several seeds has several rows. `nested` has pairs (a, b) of which strategy b draws all that strategy a drew,
    and more: where a was tried before, b takes only what it draws besides.
    """

    ways: tuple[FixedStrategy, ...]
    problems: tuple[str, ...]
    correct: Table
    spend: Table
    support: Table
    nested: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        shape = (len(self.problems), len(self.ways))
        if not self.correct.shape == self.spend.shape == self.support.shape == shape:
            raise ValueError(f"observations of {shape[0]} rows and {shape[1]} strategies are tables of that shape")

    @property
    def names(self) -> list[str]:
        """The problems, each once."""
        return sorted(set(self.problems))

    def further(self, own: int, later: int) -> Floats:
        """float64 [rows]: what strategy `later` takes where strategy `own` was tried before it."""
        before = self.spend[:, own] if (own, later) in self.nested else 0.0
        return np.maximum(self.spend[:, later] - before, 0.0)

    def only(self, wanted: set[str]) -> Observations:
        """The rows of these problems."""
        return self.rows(np.flatnonzero([problem in wanted for problem in self.problems]))

    def rows(self, numbers: Rows) -> Observations:
        """The rows of these numbers, in their order."""
        return replace(
            self,
            problems=tuple(self.problems[number] for number in numbers),
            correct=self.correct[numbers],
            spend=self.spend[numbers],
            support=self.support[numbers],
        )


def by_spend(
    ways: Sequence[FixedStrategy],
    problems: Sequence[str],
    correct: Table,
    spend: Table,
    support: Table,
    nested: frozenset[tuple[int, int]] = frozenset(),
) -> Observations:
    """Observations with the strategies put in the order of their mean spend; `nested` has numbers of before."""
    order = [int(number) for number in np.argsort(spend.mean(axis=0), kind="stable")]
    place = {number: position for position, number in enumerate(order)}
    pairs = frozenset((place[a], place[b]) for a, b in nested if place[a] < place[b])
    return Observations(
        tuple(ways[number] for number in order),
        tuple(problems),
        correct[:, order],
        spend[:, order],
        support[:, order],
        pairs,
    )


def nested_strategies(chains: Sequence[Chain]) -> frozenset[tuple[int, int]]:
    """The pairs (a, b) of numbers of naive plans in which plan b draws all that plan a draws, and perhaps more."""
    numbers = range(len(chains))
    return frozenset((a, b) for a in numbers for b in numbers if a != b and draws_all_of(chains[b], chains[a]))


def draws_all_of(wider: Chain, other: Chain) -> bool:
    """Whether `wider` differs from `other` in nothing but a greater number of copies that never meet."""
    pairs = list(zip(wider, other, strict=False))
    fan = next((place for place, (one, two) in enumerate(pairs) if operators([one]) != operators([two])), None)
    if fan is None or len(wider) != len(other):
        return False
    rest = wider[fan + 1 :]
    if operators(rest) != operators(other[fan + 1 :]) or not _is_wider(wider[fan].op, other[fan].op):
        return False
    drawing = [place for place, node in enumerate(rest) if _draws(node)]
    split = isinstance(wider[fan].op, ops.Split)
    return all(_is_apart(node, split=split) for node in rest[: max(drawing, default=-1) + 1])


def _is_wider(one: ops.Operator, other: ops.Operator) -> bool:
    """Whether they are the same fan-out but for their numbers of copies, of which the first has more."""
    match one, other:
        case ops.Split(by=None), ops.Split():
            widths: tuple[ast.Expr | None, ast.Expr | None] = one.count, other.count
            same = replace(other, count=one.count) == one
        case ops.Generate(), ops.Generate():
            widths = one.n, other.n
            same = replace(other, n=one.n) == one
        case _:
            return False
    first, second = (getattr(constant(width), "value", None) for width in widths)
    return same and isinstance(first, int) and isinstance(second, int) and first > second


def _draws(node: PhysicalOp) -> bool:
    return any(isinstance(inner.op, ops.Generate) for inner in everything((node,)))


def _is_apart(node: PhysicalOp, *, split: bool) -> bool:
    """Whether rows of different copies have no part in each other. `split`: the copies are those of a `split`."""
    op = node.op
    if isinstance(op, ops.Repeat):
        return _ends_by_itself(op.until) and all(_is_apart(inner, split=split) for inner in node.body)
    if isinstance(op, ops.Peek):
        return all(_is_apart(inner, split=split) for inner in node.body)
    if isinstance(op, ops.Keep):
        # Only a `split` numbers groups; all copies of a `generate` are of one.
        return split and op.per is not None and op.per.id == "group"
    return isinstance(op, _APART)


def _ends_by_itself(until: ast.Expr | None) -> bool:
    """Whether a loop goes on for other rows without drawing more in those that have ended."""
    if not isinstance(until, ast.Apply):
        return until is None
    return until.function == "all" and [getattr(part, "id", None) for part in until.args] == ["finished"]


@dataclass(frozen=True)
class SavedStrategy:
    """The outcomes of a strategy by row, over all runs of it, their ids, and the names of the data they ran over."""

    outcomes: dict[RowOfRun, Outcome] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)

    def mean_spend(self, unit: str) -> float | None:
        """What the strategy took on average over all of its rows, None where there is none."""
        spends = [spend(outcome, unit) for outcome in self.outcomes.values()]
        return sum(spends) / len(spends) if spends else None


def saved_strategies(
    fingerprints: Sequence[Fingerprint], unit: str, folder: RunFolder, models: Mapping[str, str] | None = None
) -> list[SavedStrategy]:
    """What the runs in `folder` have of each strategy; `fingerprints` has that of a plain run of each.

    A run is one of a strategy where its fingerprint is that of the strategy, whatever its seed and its build; for
    seconds also whatever it computed with must be the same. A part that `fingerprints` leave out is not compared. They
    lack the digests of models that must be loaded for it; `models` has the ids of these, which are compared. Where two
    runs have the same row, the newer one counts.
    """
    found = [SavedStrategy() for _ in fingerprints]
    for id in folder.ids():
        try:
            with RunFile.reading(folder.file(id)) as run:
                seen = run.record.fingerprint
                named = all(run.record.models.get(name) == model for name, model in (models or {}).items())
                matching = [way for way, own in enumerate(fingerprints) if named and _is_run_of(own, seen, unit)]
                rows = list(run.rows()) if matching else []
        except RunFileError:
            continue
        for way in matching:
            found[way].inputs.add(run.record.input)
            found[way].runs.extend([id] * bool(rows))
            found[way].outcomes.update({(_problem(row, run.record), run.record.seed): row.outcome for row in rows})
    return found


def _problem(row: RowRecord, record: RunRecord) -> str:
    """What a problem is known by over strategies. Widths can be arguments, so `row.key` differs between these."""
    return digest([row.outcome.id, row.asked or record.input_digest])


def observations(
    ways: Sequence[FixedStrategy], kept: Sequence[SavedStrategy], unit: str, nested: Iterable[tuple[int, int]] = ()
) -> Observations | None:
    """The rows that the strategies have in common with right or wrong answers, None where no strategy has any.

    A row that failed, as its strategy broke off or its answer could not be graded, is wrong where another strategy's
    was graded. A strategy of which nothing is kept is left out, and so is one that has less than half of what the
    others have in common: it would leave little to compare. `nested`: see `Observations`, with numbers of `ways`.
    """
    known = {row for way in kept for row, outcome in way.outcomes.items() if outcome.correct is not None}
    graded = {
        number: {
            row
            for row, outcome in way.outcomes.items()
            if row in known and (outcome.correct is not None or outcome.failure is not None)
        }
        for number, way in enumerate(kept)
    }
    common: set[RowOfRun] = set()
    used: list[int] = []
    for number in sorted(graded, key=lambda number: (-len(graded[number]), number)):
        shared = graded[number] & common if used else graded[number]
        if shared and 2 * len(shared) >= len(common):
            common = shared
            used.append(number)
    if not used:
        return None
    rows, used = sorted(common), sorted(used)
    place = {number: position for position, number in enumerate(used)}
    outcomes = [[kept[number].outcomes[row] for number in used] for row in rows]
    return by_spend(
        [ways[number] for number in used],
        [key for key, _ in rows],
        np.array([[float(outcome.correct is True) for outcome in row] for row in outcomes]),
        np.array([[spend(outcome, unit) for outcome in row] for row in outcomes]),
        np.array([[UNSURE if outcome.support is None else outcome.support for outcome in row] for row in outcomes]),
        frozenset((place[a], place[b]) for a, b in nested if a in place and b in place),
    )


def spend(outcome: Outcome, unit: str) -> float:
    """What a row took, in the unit of a budget: sampled tokens, those of thoughts, engine seconds, or its price."""
    return _SPENDS[unit](outcome)


def _is_run_of(own: Fingerprint, kept: Mapping[str, str], unit: str) -> bool:
    ignored = _OPEN if unit == "seconds" else _OPEN | _SPEED
    # What was switched on in the run alone counts too.
    added = {part for part in kept if part in _SPEED and part not in own} - ignored
    return not added and all(kept.get(part) == value for part, value in own.items() if part not in ignored)
