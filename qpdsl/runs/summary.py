"""The summary of a run over many rows, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qpdsl.executor.requests.latencies import Waits
from qpdsl.executor.requests.request import Calls
from qpdsl.planner.cost.run_figures import THOUGHT_TOKENS, thought_json
from qpdsl.runs.answer_metrics import (
    Calibration,
    ChoiceAccuracy,
    accuracies_at_k,
    calibration,
    calibration_json,
    calibration_words,
    choice_facts,
    choice_json,
    is_at_k,
    share_json,
    share_words,
)
from qpdsl.runs.usage import (
    FilterFigures,
    call_facts,
    calls_record,
    found_facts,
    found_json,
    shadow_facts,
    shadow_json,
    tokens_words,
    wait_facts,
    waits_json,
)

if TYPE_CHECKING:
    from qpdsl.runs.row_outcome import Outcome


# What is said of candidates that were not scored, after their number.
TOO_LONG = "(too long for a verifier or judge)"
# What is said of results that are rows left before their end.
LEFT_EARLY = "a `repeat` or `search` ended before the row did"


@dataclass(frozen=True, slots=True)
class Summary:
    """`seconds` is the wall time of this run alone, in which `sampled` tokens were drawn for the rows it finished.

    A row that failed, or that the grader failed on, counts as wrong. Greedy's tokens are not counted. `waits`: how long
    this run's samples waited for their tokens, by model. `calls`: what this run took of servers, None where it asked
    none. `groups`: of each outcome the group that it belongs to, None where nobody asked.
    """

    outcomes: Sequence[Outcome]
    seconds: float
    sampled: int
    waits: Mapping[str, Waits] = field(default_factory=dict)
    calls: Calls | None = None
    groups: Sequence[str] | None = None

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.failure is not None]

    def lines(self) -> list[str]:
        """For people: aligned, one fact a line."""
        facts = [("rows", str(len(self.outcomes)))]
        if self.failed:
            first = self.failed[0]
            facts.append(("failed", f"{len(self.failed):,} (row `{first.id}`: {first.failure})"))
        if misgraded := [outcome for outcome in self.outcomes if outcome.grader_error is not None]:
            facts.append(("warning", grader_failed(len(misgraded))))
        if self._unanswered:
            first = self._unanswered[0]
            facts.append(("no answer", f"{len(self._unanswered):,} (row `{first.id}`: {first.unanswered})"))
        if self._unfinished:
            facts.append(("unfinished", f"{len(self._unfinished):,} (row `{self._unfinished[0].id}`: {LEFT_EARLY})"))
        if self._accuracy:
            facts.append(("accuracy", _share(self._accuracy)))
            facts += [(group, _share(verdicts)) for group, verdicts in self._by_group.items()]
        if self._points:
            facts.append(("points", f"{sum(self._points) / len(self._points):.1%} on average"))
        if self._greedy_accuracy:
            facts.append(("greedy", _share(self._greedy_accuracy)))
        facts += found_facts(self._counts)
        if self._accuracy and (ungraded := len(self.outcomes) - len(self._accuracy)):
            facts.append(("not graded", f"{ungraded:,}"))
        facts += choice_facts(self._choices)
        if self._choices and self._left_out:
            facts.append(("not at k", f"{self._left_out:,} (what their samples come to is unknown)"))
        if self._choices and (calibrated := self._calibration) is not None:
            facts.append(("calibration", calibration_words(calibrated)))
        facts.append(("tokens", tokens_words(self._tokens_in, self._tokens_out, self._counts[THOUGHT_TOKENS])))
        if self._near_ties:
            facts.append(("near ties", f"{self._near_ties:,} tokens that rounding could have changed"))
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
        if self._unanswered:
            summary["unanswered"] = len(self._unanswered)
        if self._unfinished:
            summary["unfinished"] = len(self._unfinished)
        for name, verdicts in (("", self._accuracy), ("greedy_", self._greedy_accuracy)):
            if verdicts:
                share = share_json(sum(verdicts), len(verdicts))
                summary |= {f"{name}{key}": value for key, value in share.items()}
        if self._points:
            summary["points"] = sum(self._points) / len(self._points)
        summary |= found_json(self._counts)
        if self._by_group:
            summary["groups"] = {name: share_json(sum(own), len(own)) for name, own in self._by_group.items()}
        if self._choices:
            summary["at_k"] = choice_json(self._choices)
            if self._left_out:
                summary["not_at_k"] = self._left_out
        if (calibrated := self._calibration) is not None:
            summary["calibration"] = calibration_json(calibrated)
        summary |= {"tokens_in": self._tokens_in, "tokens_out": self._tokens_out, **thought_json(self._counts)}
        summary |= {"near_ties": self._near_ties}
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
    def _unanswered(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.wrong_for_no_answer]

    @property
    def _unfinished(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.unfinished]

    @property
    def _by_group(self) -> dict[str, list[bool]]:
        """The verdicts of each group; groups that are numbers in their order, others in that of the alphabet."""
        found: dict[str, list[bool]] = {}
        if self.groups is not None:
            for group, outcome in zip(self.groups, self.outcomes, strict=True):
                if outcome.correct is not None:
                    found.setdefault(group, []).append(outcome.correct)
        return {name: found[name] for name in sorted(found, key=_order)}

    @property
    def _choices(self) -> list[ChoiceAccuracy]:
        return accuracies_at_k(self.outcomes)

    @property
    def _left_out(self) -> int:
        """Graded rows that have no part in what samples come to at every k."""
        return len(self._accuracy) - sum(map(is_at_k, self.outcomes))

    @property
    def _calibration(self) -> Calibration | None:
        known = [outcome for outcome in self.outcomes if outcome.score is not None and outcome.correct is not None]
        return calibration([outcome.score or 0.0 for outcome in known], [outcome.correct is True for outcome in known])

    @property
    def _accuracy(self) -> list[bool]:
        return [outcome.correct for outcome in self.outcomes if outcome.correct is not None]

    @property
    def _points(self) -> list[float]:
        """The points of graded rows, where any answer is right in part; a wrong one without points has none."""
        graded = [outcome for outcome in self.outcomes if outcome.correct is not None]
        given = [outcome.points if outcome.points is not None else float(bool(outcome.correct)) for outcome in graded]
        return given if any(0 < points < 1 for points in given) else []

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


def grader_failed(rows: int) -> str:
    """That the grader failed on answers of so many rows, for people."""
    return f"the grader failed on answers of {rows:,} row{'s' * (rows > 1)}, which count as wrong"


def aligned(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Names and values in two columns."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name:<{width}}  {value}" for name, value in pairs]


def _share(verdicts: Sequence[bool]) -> str:
    return share_words(sum(verdicts), len(verdicts))


def _order(group: str) -> tuple[int, float, str]:
    try:
        return 0, float(group.rpartition(" ")[2]), group
    except ValueError:
        return 1, 0.0, group
