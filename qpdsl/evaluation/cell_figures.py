"""What one cell of a sweep came to: how often it is right, and what a problem costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qpdsl.dataset.row_outcome import Outcome
    from qpdsl.measures.statistics.intervals import Interval
    from qpdsl.measures.statistics.paired_tests import PairedResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """Figures of one cell over its problems and seeds.

    `shares` has, by the number of a problem, the share of the seeds that got it right, for problems of which every
    answer could be graded. `tokens` are sampled tokens and `seconds` the engine's, both a problem on average; `seconds`
    is None where the engine did not say. `failed` counts rows of all seeds.
    """

    problems: int
    seeds: int
    failed: int
    shares: Mapping[int, float]
    tokens: float
    tokens_in: float
    seconds: float | None

    @classmethod
    def of(cls, runs: Sequence[Mapping[int, Outcome]]) -> CellFigures:
        """The figures of one run a seed, each with the outcomes of the same problems by their numbers."""
        outcomes = [outcome for run in runs for outcome in run.values()]
        seconds = [outcome.engine_seconds for outcome in outcomes]
        return cls(
            problems=len(runs[0]),
            seeds=len(runs),
            failed=sum(outcome.failure is not None for outcome in outcomes),
            shares=dict(_shares(runs)),
            tokens=fmean(outcome.tokens_out for outcome in outcomes),
            tokens_in=fmean(outcome.tokens_in for outcome in outcomes),
            seconds=fmean(seconds) if any(seconds) else None,
        )

    @property
    def accuracy(self) -> float | None:
        """The mean share; None where nothing was graded."""
        return fmean(self.shares.values()) if self.shares else None

    def interval(self) -> Interval | None:
        """The 95% interval of the accuracy over problems; None where nothing was graded."""
        from qpdsl.measures.statistics.seed_shares import share_interval

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
        from qpdsl.measures.statistics.seed_shares import shares_compared

        common = [number for number in self.shares if number in baseline.shares]
        if not common:
            return None
        first, second = ([one.shares[number] for number in common] for one in (baseline, self))
        return shares_compared(first, second, one_seed=self.seeds == baseline.seeds == 1)


def _shares(runs: Sequence[Mapping[int, Outcome]]) -> Iterator[tuple[int, float]]:
    from qpdsl.measures.statistics.seed_shares import share_right

    # By number, as a bootstrap depends on the order of what it resamples, and rows end in any.
    for number in sorted(runs[0]):
        share = share_right([run[number].correct for run in runs])
        if share is not None:
            yield number, share
