"""The summary of a run over many rows, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qpdsl.dataset.lossy_figures import FilterFigures, shadow_facts, shadow_json
from qpdsl.dataset.server_totals import call_facts, calls_record
from qpdsl.dataset.token_waits import wait_facts, waits_json
from qpdsl.executor.requests.latencies import Waits
from qpdsl.executor.requests.request import Calls

if TYPE_CHECKING:
    from qpdsl.dataset.row_outcome import Outcome


# What is said of candidates that were not scored, after their number.
TOO_LONG = "(too long for a verifier or judge)"


@dataclass(frozen=True, slots=True)
class Summary:
    """`seconds` is the wall time of this run alone, in which `sampled` tokens were drawn for the rows it finished.

    A row that failed counts as wrong. Greedy's tokens are not counted. `waits`: how long this run's samples waited for
    their tokens, by model. `calls`: what this run took of servers, None where it asked none.
    """

    outcomes: Sequence[Outcome]
    seconds: float
    sampled: int
    waits: Mapping[str, Waits] = field(default_factory=dict)
    calls: Calls | None = None

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def lines(self) -> list[str]:
        """For people: aligned, one fact a line."""
        facts = [("rows", str(len(self.outcomes)))]
        if self.failed:
            first = self.failed[0]
            facts.append(("failed", f"{len(self.failed)} (row `{first.id}`: {first.error})"))
        if self._accuracy:
            facts.append(("accuracy", _share(self._accuracy)))
        if self._greedy_accuracy:
            facts.append(("greedy", _share(self._greedy_accuracy)))
        facts.append(("tokens", f"{self._tokens_in:,} in, {self._tokens_out:,} out"))
        facts.append(("near ties", f"{self._near_ties:,}"))
        if self._unscored:
            facts.append(("unscored", f"{self._unscored:,} {TOO_LONG}"))
        if (filtered := self._filtered) is not None:
            facts += filtered.facts()
        facts += shadow_facts(self._counts)
        facts += call_facts(self.calls, self._counts)
        if self.sampled:
            facts.append(("seconds", f"{self.seconds:.1f} ({self.sampled / self.seconds:,.0f} tokens/s)"))
        facts += wait_facts(self.waits)
        return aligned(facts)

    def to_json(self, *, timing: bool) -> dict[str, Any]:
        """For programs; the keys are stable."""
        summary: dict[str, Any] = {"rows": len(self.outcomes), "failed": len(self.failed)}
        for name, verdicts in (("", self._accuracy), ("greedy_", self._greedy_accuracy)):
            if verdicts:
                summary |= {f"{name}correct": sum(verdicts), f"{name}compared": len(verdicts)}
        summary |= {"tokens_in": self._tokens_in, "tokens_out": self._tokens_out, "near_ties": self._near_ties}
        if self._unscored:
            summary |= {"unscored": self._unscored}
        if (filtered := self._filtered) is not None:
            summary |= {"filter": filtered.to_json(timing=timing)}
        summary |= shadow_json(self._counts)
        summary |= calls_record(self.calls, self._counts)
        if timing:
            summary |= {"seconds": round(self.seconds, 3), "waits": waits_json(self.waits)}
        return summary

    @property
    def _accuracy(self) -> list[bool]:
        return [outcome.correct for outcome in self.outcomes if outcome.correct is not None]

    @property
    def _greedy_accuracy(self) -> list[bool]:
        return [outcome.greedy_correct for outcome in self.outcomes if outcome.greedy_correct is not None]

    @property
    def _tokens_in(self) -> int:
        return sum(outcome.tokens_in for outcome in self.outcomes)

    @property
    def _tokens_out(self) -> int:
        return sum(outcome.tokens_out for outcome in self.outcomes)

    @property
    def _unscored(self) -> int:
        return sum(outcome.unscored for outcome in self.outcomes)

    @property
    def _filtered(self) -> FilterFigures | None:
        return FilterFigures.of(self._counts)

    @property
    def _counts(self) -> Counter[str]:
        """Sums of `Outcome.filtered`."""
        counts: Counter[str] = Counter()
        for outcome in self.outcomes:
            counts.update(outcome.filtered)
        return counts

    @property
    def _near_ties(self) -> int:
        return sum(outcome.near_ties for outcome in self.outcomes)


def aligned(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Names and values in two columns."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name:<{width}}  {value}" for name, value in pairs]


def _share(verdicts: list[bool]) -> str:
    right, total = sum(verdicts), len(verdicts)
    return f"{right}/{total} ({right / total:.1%})"
