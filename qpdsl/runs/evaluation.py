"""What a sweep came to: its cells side by side, which are on the front, and how each differs from a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from qpdsl.errors import UsageError, unknown
from qpdsl.runs.grid import Cell
from qpdsl.runs.plots import Point, Scatter

if TYPE_CHECKING:
    from qpdsl.runs.answer_metrics import ChoiceAccuracy
    from qpdsl.runs.row_outcome import Outcome
    from qpdsl.runs.statistics import Interval, PairedResult


@dataclass(frozen=True, kw_only=True)
class CellFigures:
    """Figures of one cell, or of saved runs of one set-up, over its problems and seeds.

    `shares` has, by the number of a problem, the share of the seeds that got it right, for problems of which every
    answer could be graded. `tokens` are sampled tokens, `thought_tokens` those of them that are thoughts, and `seconds`
    the engine's, all a problem on average; `seconds` is None where the engine did not say. `failed` counts rows of all
    seeds, `unanswered` those that are wrong as they have no answer, `unfinished` those that answer by a row left
    before its end. `at_k` has what fewer samples would have come to, where candidates were recorded.
    """

    problems: int
    seeds: int
    failed: int
    unanswered: int
    unfinished: int
    shares: Mapping[int, float]
    tokens: float
    thought_tokens: float
    tokens_in: float
    seconds: float | None
    at_k: tuple[ChoiceAccuracy, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[Mapping[int, Outcome]]) -> CellFigures:
        """The figures of one run a seed, each with the outcomes of the same problems by their numbers."""
        outcomes = [outcome for run in runs for outcome in run.values()]
        seconds = [outcome.engine_seconds for outcome in outcomes]
        return cls(
            problems=len(runs[0]),
            seeds=len(runs),
            failed=sum(outcome.failure is not None for outcome in outcomes),
            unanswered=sum(outcome.wrong_for_no_answer for outcome in outcomes),
            unfinished=sum(outcome.unfinished for outcome in outcomes),
            shares=dict(_shares(runs)),
            tokens=fmean(outcome.tokens_out for outcome in outcomes),
            thought_tokens=fmean(outcome.thought_tokens for outcome in outcomes),
            tokens_in=fmean(outcome.tokens_in for outcome in outcomes),
            seconds=fmean(seconds) if any(seconds) else None,
            at_k=tuple(_at_k(runs)),
        )

    @property
    def accuracy(self) -> float | None:
        """The mean share; None where nothing was graded."""
        return fmean(self.shares.values()) if self.shares else None

    @cached_property
    def interval(self) -> Interval | None:
        """The 95% interval of the accuracy over problems; None where nothing was graded."""
        from qpdsl.runs.statistics import share_interval

        return share_interval(list(self.shares.values())) if self.shares else None

    def by_group(self, groups: Mapping[int, str]) -> dict[str, float]:
        """The accuracy of each group, by the group that a problem is in."""
        found: dict[str, list[float]] = {}
        for number, share in self.shares.items():
            if number in groups:
                found.setdefault(groups[number], []).append(share)
        return {group: fmean(shares) for group, shares in found.items()}

    def against(self, baseline: CellFigures) -> PairedResult | None:
        """This cell beside another, problem by problem; None where they have no graded problem in common."""
        from qpdsl.runs.statistics import shares_compared

        common = [number for number in self.shares if number in baseline.shares]
        if not common:
            return None
        first, second = ([one.shares[number] for number in common] for one in (baseline, self))
        return shares_compared(first, second, one_seed=self.seeds == baseline.seeds == 1)


def _at_k(runs: Sequence[Mapping[int, Outcome]]) -> list[ChoiceAccuracy]:
    from qpdsl.runs.answer_metrics import accuracies_at_k, is_at_k

    known = [number for number in sorted(runs[0]) if all(is_at_k(run[number]) for run in runs)]
    return accuracies_at_k((run[number] for number in known for run in runs), len(runs))


def _shares(runs: Sequence[Mapping[int, Outcome]]) -> Iterator[tuple[int, float]]:
    from qpdsl.runs.statistics import share_right

    # By number, as a bootstrap depends on the order of what it resamples, and rows end in any.
    for number in sorted(runs[0]):
        share = share_right([run[number].correct for run in runs])
        if share is not None:
            yield number, share


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell with its figures, and how it differs from the baseline.

    `cheap` says that no other cell is as right for fewer tokens, or righter for as many; `quick` says the same of
    seconds. `against` is None for the baseline itself. `groups` has the accuracy by the value of a field. `runs` are
    the ids of its saved runs, one a seed.
    """

    cell: Cell
    figures: CellFigures
    cheap: bool
    quick: bool
    against: PairedResult | None
    groups: Mapping[str, float]
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEvaluation:
    """All cells of a sweep in the order of its grid. `by` is the field that groups are of, None without any.

    `baseline` is the cell that the others are compared with, None where nothing was graded.
    """

    name: str
    input: str
    problems: int
    seeds: tuple[int, ...]
    results: tuple[CellResult, ...]
    baseline: Cell | None
    by: str | None = None

    @property
    def failed(self) -> int:
        """How many rows failed, over all cells and seeds."""
        return sum(result.figures.failed for result in self.results)

    @property
    def groups(self) -> list[str]:
        """The values of the field that groups are of, sorted as numbers where they are such."""
        found = {group for result in self.results for group in result.groups}
        return sorted(found, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text))

    def scatter(self) -> Scatter:
        """Accuracy against sampled tokens. Raises UsageError where nothing was graded."""
        points = list(self._points())
        if not points:
            raise UsageError("there is no accuracy to plot", "no row of the input says what its right answer is")
        label = "sampled tokens a problem"
        return Scatter(f"{self.input}: accuracy by {label}", label, "accuracy", points)

    def _points(self) -> Iterator[Point]:
        for result in self.results:
            accuracy, interval = result.figures.accuracy, result.figures.interval
            if accuracy is not None and interval is not None:
                place = (result.figures.tokens, accuracy, interval.low, interval.high)
                yield Point(result.cell.program, *place, result.cell.parameters, result.cheap)


def evaluation(
    name: str,
    input: str,
    seeds: Sequence[int],
    runs: Mapping[Cell, Sequence[Mapping[int, Outcome]]],
    ids: Mapping[Cell, Sequence[str]],
    *,
    baseline: str | None = None,
    by: str | None = None,
    groups: Mapping[int, str] | None = None,
) -> SweepEvaluation:
    """The evaluation of cells, of which `runs` has the outcomes by row number, a run a seed, and `ids` the saved runs.

    `baseline` is the name of a cell as `Cell.name` or `Cell.parameters` has it, None for the one that is right most
    often. `groups` has the value of the field `by` for each row. Raises UsageError where there is no such baseline.
    """
    figures = {cell: CellFigures.of(own) for cell, own in runs.items()}
    base = _baseline(figures, baseline)
    cheap = _front({cell: (own.tokens, own.accuracy) for cell, own in figures.items()})
    quick = _front({cell: (own.seconds, own.accuracy) for cell, own in figures.items()})
    results = tuple(
        CellResult(
            cell=cell,
            figures=own,
            cheap=cell in cheap,
            quick=cell in quick,
            against=None if base in (None, cell) else own.against(figures[base]),
            groups=own.by_group(groups or {}),
            runs=tuple(ids.get(cell, ())),
        )
        for cell, own in figures.items()
    )
    problems = max(own.problems for own in figures.values())
    return SweepEvaluation(
        name=name, input=input, problems=problems, seeds=tuple(seeds), results=results, baseline=base, by=by
    )


def _baseline(figures: Mapping[Cell, CellFigures], name: str | None) -> Cell | None:
    graded = {cell: own.accuracy for cell, own in figures.items() if own.accuracy is not None}
    if name is None:
        # Of cells that are equally right the cheapest.
        return min(graded, key=lambda cell: (-graded[cell], figures[cell].tokens), default=None)
    cell = named_cell(figures, name)
    return cell if cell in graded else None


def named_cell(cells: Iterable[Cell], name: str) -> Cell:
    """The cell of a name: its full name, its parameters, or its program where that has one cell. Raises UsageError."""
    wanted = "".join(name.split())
    known = list(cells)
    for names in ([cell.name for cell in known], [cell.parameters for cell in known], [cell.program for cell in known]):
        found = [cell for cell, own in zip(known, names, strict=True) if "".join(own.split()) == wanted]
        if len(found) == 1:
            return found[0]
    raise UsageError(f"`--baseline`: {unknown(name, [cell.name for cell in known], 'there is no single cell')}")


def _front(points: Mapping[Cell, tuple[float | None, float | None]]) -> set[Cell]:
    """The cells on the front of cost and accuracy, of those of which both are known."""
    from qpdsl.runs.statistics import on_front

    known = [(cell, (cost, gain)) for cell, (cost, gain) in points.items() if cost is not None and gain is not None]
    return {cell for (cell, _), is_on in zip(known, on_front([point for _, point in known]), strict=True) if is_on}
