"""What a sweep came to: its cells beside one another, which are on the front, and how each differs from a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qpdsl.errors import UsageError, unknown
from qpdsl.evaluation.cell_figures import CellFigures
from qpdsl.evaluation.grid import Cell
from qpdsl.plots.pareto import on_front
from qpdsl.plots.scatter import Point, Scatter

if TYPE_CHECKING:
    from qpdsl.dataset.row_outcome import Outcome
    from qpdsl.measures.statistics.intervals import Interval
    from qpdsl.measures.statistics.paired_tests import PairedResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell with its figures, the interval of its accuracy, and how it differs from the baseline.

    `cheap` says that no other cell is as right for fewer tokens, or righter for as many; `quick` says the same of
    seconds. `against` is None for the baseline itself. `groups` has the accuracy by the value of a field. `runs` are
    the ids of its kept runs, one a seed.
    """

    cell: Cell
    figures: CellFigures
    interval: Interval | None
    cheap: bool
    quick: bool
    against: PairedResult | None
    groups: Mapping[str, float]
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
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
        return self._scatter(
            "sampled tokens a problem", [result.figures.tokens for result in self.results], quick=False
        )

    def scatter_of_seconds(self) -> Scatter:
        """Accuracy against the engine's seconds. Raises UsageError where these are not known."""
        seconds = [result.figures.seconds for result in self.results]
        if None in seconds:
            raise UsageError("the engine's seconds of these runs are not known", "models on servers do not tell them")
        return self._scatter("engine seconds a problem", [value or 0.0 for value in seconds], quick=True)

    def _scatter(self, label: str, costs: Sequence[float], *, quick: bool) -> Scatter:
        points = list(self._points(costs, quick=quick))
        if not points:
            raise UsageError("there is no accuracy to plot", "no row of the input says what its right answer is")
        return Scatter(f"{self.input}: accuracy by {label}", label, "accuracy", points)

    def _points(self, costs: Sequence[float], *, quick: bool) -> Iterator[Point]:
        for result, cost in zip(self.results, costs, strict=True):
            accuracy, interval = result.figures.accuracy, result.interval
            if accuracy is not None and interval is not None:
                front = result.quick if quick else result.cheap
                ends = (interval.low, interval.high)
                yield Point(result.cell.program, cost, accuracy, *ends, result.cell.parameters, front)


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
) -> Evaluation:
    """The evaluation of cells, of which `runs` has the outcomes by row number, a run a seed, and `ids` the kept runs.

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
            interval=own.interval(),
            cheap=cell in cheap,
            quick=cell in quick,
            against=None if base in (None, cell) else own.against(figures[base]),
            groups=own.by_group(groups or {}),
            runs=tuple(ids.get(cell, ())),
        )
        for cell, own in figures.items()
    )
    problems = max(own.problems for own in figures.values())
    return Evaluation(
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
    known = [(cell, (cost, gain)) for cell, (cost, gain) in points.items() if cost is not None and gain is not None]
    return {cell for (cell, _), is_on in zip(known, on_front([point for _, point in known]), strict=True) if is_on}
