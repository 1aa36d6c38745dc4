"""Two runs of one program, problem by problem: where each first parted, how near a tie that was, what flips came from.

The rows are run again on both sides (see `retraced.py`), so that each token has its place in the program and its
margin. A flip is followed from the row whose answer was right: to the first of its tokens that the other side drew
otherwise, or to the choice that the other side made otherwise among the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

from qpdsl.planner.explain.plan import in_words
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.values.value import dumps, plain
from qpdsl.runs.compare.comparison import Comparison, Pair
from qpdsl.runs.compare.divergence import (
    Divergence,
    DrawnSample,
    divergence_of,
    first_divergence,
)
from qpdsl.runs.compare.retraced import RetracedRow, Retracing

if TYPE_CHECKING:
    from qpdsl.executor.engine.step.margin import Margin

# Whose answer is right where the other's is not.
Better = Literal["A", "B"]
_CHOOSE = (ops.Keep, ops.Tournament, ops.KeepTournament, ops.Where, ops.Distinct, ops.First, ops.Vote)


@dataclass(frozen=True, slots=True)
class PlacedDivergence:
    """A divergence in words and numbers: the operator, the two tokens as text, and the margin on either side.

    `operator` drew the token, or chose among the rows. `row_token`: how many tokens its row had before, since the
    context was set. A margin is None where the cause is no token, or where the model does not say.
    """

    divergence: Divergence
    operator: str
    row_token: int = 0
    pieces: tuple[str, str] = ("", "")
    margins: tuple[Margin | None, Margin | None] = (None, None)

    @property
    def near_tie(self) -> bool:
        """Whether rounding could have decided it on one side."""
        return any(margin is not None and margin.near_tie for margin in self.margins)


@dataclass(frozen=True, slots=True)
class ProblemDivergence:
    """A problem of both runs. `first`: the first difference, None where all samples and the answer are the same.

    `better` and `lost`, where it flipped: which side is right, and where the other one lost it.
    """

    pair: Pair
    first: PlacedDivergence | None
    better: Better | None = None
    lost: PlacedDivergence | None = None


@dataclass(frozen=True)
class FirstDivergences:
    """The problems of a comparison. `unrepeated`: ids of those that came out otherwise here than they were saved."""

    problems: tuple[ProblemDivergence, ...]
    unrepeated: tuple[str, ...]

    @property
    def diverged(self) -> list[PlacedDivergence]:
        """The first difference of each problem that has one."""
        return [problem.first for problem in self.problems if problem.first is not None]

    def of(self, cause: str) -> list[PlacedDivergence]:
        """Those of a cause."""
        return [own for own in self.diverged if own.divergence.cause == cause]

    @property
    def flips(self) -> list[ProblemDivergence]:
        return [problem for problem in self.problems if problem.lost is not None]

    @property
    def margins(self) -> tuple[list[float], list[float]]:
        """The margins of the tokens that parted the problems, on either side, as far as they are known."""
        tokens = self.of("token")
        sides = ([own.margins[side] for own in tokens] for side in (0, 1))
        first, second = ([margin.gap for margin in side if margin is not None] for side in sides)
        return first, second

    @property
    def median_token(self) -> float | None:
        """The median of `row_token`, from 1; None where no token parted any."""
        tokens = [own.row_token + 1 for own in self.of("token")]
        return median(tokens) if tokens else None


def first_divergences(
    comparison: Comparison,
    sides: tuple[Retracing, Retracing],
    rows: tuple[Mapping[int, RetracedRow], Mapping[int, RetracedRow]],
) -> FirstDivergences:
    """What parted the problems of two runs, whose `rows` by number were run again by `sides`."""
    searches = [node.id for node in everything(sides[0].job.plan.ops) if isinstance(node.op, ops.Search)]
    problems: list[tuple[Pair, Divergence | None, Better | None, Divergence | None]] = []
    unrepeated: list[str] = []
    kept: list[tuple[RetracedRow, RetracedRow]] = []
    for pair in comparison.matching.pairs:
        one, other = (side.get(problem.rows[0].number) for side, problem in zip(rows, pair, strict=True))
        if one is None or other is None:
            continue
        again = zip(pair, (one, other), strict=True)
        if any(
            dumps(plain(problem.rows[0].outcome.answer)) != dumps(plain(own.outcome.answer)) for problem, own in again
        ):
            unrepeated.append(pair[0].id)
            continue
        found = first_divergence(one.drawn, other.drawn, searches)
        if found is None and one.outcome.answer != other.outcome.answer:
            found = Divergence("choice")
        better = _better(pair)
        problems.append((pair, found, better, None if better is None else _lost(better, one, other, found)))
        kept.append((one, other))
    placed = _placed([own for _, first, _, lost in problems for own in (first, lost)], kept, sides)
    made = [
        ProblemDivergence(pair, placed[2 * number], better, placed[2 * number + 1])
        for number, (pair, _, better, _) in enumerate(problems)
    ]
    return FirstDivergences(tuple(made), tuple(unrepeated))


def _better(pair: Pair) -> Better | None:
    one, other = (problem.rows[0].outcome.correct for problem in pair)
    if one is None or other is None or one == other:
        return None
    return "A" if one else "B"


def _lost(better: Better, one: RetracedRow, other: RetracedRow, first: Divergence | None) -> Divergence:
    """Where the side lost a problem that the `better` one has right."""
    right, wrong = (one, other) if better == "A" else (other, one)
    found = divergence_of(right.path, right.drawn, wrong.drawn)
    if found is not None and found.cause != "choice":
        return found if better == "A" else _turned(found)
    # The row is there, or was dropped, as another one was preferred: which may have been drawn otherwise.
    rival = divergence_of(wrong.path, wrong.drawn, right.drawn) if found is None else None
    if rival is not None and rival.cause != "choice":
        return _turned(rival) if better == "A" else rival
    if first is not None and first.cause != "choice":
        return first
    if found is None:
        return Divergence("choice")
    return found if better == "A" else _turned(found)


def _turned(own: Divergence) -> Divergence:
    """The divergence with its sides in the other order."""
    first, second = own.samples
    return replace(own, first=own.second, second=own.first, samples=(second, first))


def _placed(
    found: Sequence[Divergence | None],
    kept: Sequence[tuple[RetracedRow, RetracedRow]],
    sides: tuple[Retracing, Retracing],
) -> list[PlacedDivergence | None]:
    """Each divergence with its words and margins; two belong to each pair of rows."""
    margins: list[dict[int, Margin | None]] = []
    for number, side in enumerate(sides):
        wanted = [
            (place, kept[place // 2][number].of(sample), own.place)
            for place, own in enumerate(found)
            if own is not None
            and own.cause != "choice"
            and (sample := own.samples[number]) is not None
            # A sample that has ended had no draw there.
            and own.place < len(sample.tokens)
        ]
        read = side.margins([(sample, place) for _, sample, place in wanted])
        margins.append({place: margin for (place, _, _), margin in zip(wanted, read, strict=True)})
    placed: list[PlacedDivergence | None] = []
    for place, own in enumerate(found):
        if own is None:
            placed.append(None)
            continue
        words = operator_words(sides[0].job.plan, own)
        if own.cause == "choice":
            placed.append(PlacedDivergence(own, words))
            continue
        rows = kept[place // 2]
        pieces = tuple(
            "" if sample is None else side.piece(row.of(sample).model, sample.tokens, own.place)
            for side, row, sample in zip(sides, rows, own.samples, strict=True)
        )
        before = _before(own, rows[0])
        both = margins[0].get(place), margins[1].get(place)
        placed.append(PlacedDivergence(own, words, before, (pieces[0], pieces[1]), both))
    return placed


def _before(own: Divergence, row: RetracedRow) -> int:
    """How many tokens the row had before the place of a divergence, of the samples that it was made of."""
    sample = own.samples[0]
    assert sample is not None
    line = [drawn for drawn in row.drawn if own.path[: len(drawn.path)] == drawn.path and drawn is not sample]
    prompt = len(row.of(sample).request.prompt)
    first = min((len(row.of(drawn).request.prompt) for drawn in line), default=prompt)
    return max(prompt - first, 0) + own.place


def operator_words(plan: PhysicalPlan, own: Divergence) -> str:
    """What drew the token, or chose among the rows, as a program says it."""
    if own.cause == "choice":
        return _words_of(_chooser(plan, own.operator))
    return next((_words_of(node) for node in everything(plan.ops) if node.id == own.operator), own.operator)


def _words_of(node: PhysicalOp | None) -> str:
    if node is None:
        return "the last choice"
    if isinstance(node.op, ops.Generate):
        return f"generate {node.op.model.name}"
    return in_words(node.op)


def _chooser(plan: PhysicalPlan, operator: str) -> PhysicalOp | None:
    """What chose the rows that came to a `generate`: the nearest choice before it, round a loop; without one the last.

    None where a program has no choice.
    """
    chains = [plan.ops, *(chain for node in everything(plan.ops) for chain in (node.body, *node.arms))]
    for chain in chains:
        places = [place for place, node in enumerate(chain) if node.id == operator]
        if places:
            order = (*reversed(chain[: places[0]]), *reversed(chain[places[0] :]))
            if (found := next((node for node in order if isinstance(node.op, _CHOOSE)), None)) is not None:
                return found
    return next((node for node in reversed([*everything(plan.ops)]) if isinstance(node.op, _CHOOSE)), None)


def sample_name(sample: DrawnSample | Divergence) -> str:
    """Which sample it is, for people: its rounds and its path, both from 1."""
    rounds = [f"round {'.'.join(str(number + 1) for number in sample.rounds)}"] if sample.rounds else []
    paths = [f"sample {'.'.join(str(number + 1) for number in sample.path)}"] if sample.path else []
    return ", ".join((*rounds, *paths))
