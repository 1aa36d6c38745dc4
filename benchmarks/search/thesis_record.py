"""What a run of the thesis' protocol comes to, by its outcomes and by the forwards in its trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qpdsl.executor.events.events import EngineStepped, Event, Lost
from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.executor.measure.run_meter import figure
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.statistics import wilson


@dataclass(frozen=True)
class Forwards:
    """The forwards of one model: how many, their tokens and seconds.

    At most `peak_pages` of `pages` pages of keys and values were held. `cached_tokens` of its prompts were found in the
    prefix cache, from which `evictions` pages went, and `thrashed` of these were missed again. `held` are the pages
    after each forward.
    """

    steps: int
    prefill_tokens: int
    decode_tokens: int
    seconds: float
    pages: int
    peak_pages: int
    cached_tokens: int
    evictions: int
    thrashed: int
    preemptions: int
    held: tuple[int, ...] = ()

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that was found in the cache; a prompt that is computed again counts again."""
        return self.cached_tokens / max(self.cached_tokens + self.prefill_tokens, 1)

    @property
    def tokens(self) -> int:
        """Tokens that went through the model."""
        return self.prefill_tokens + self.decode_tokens


@dataclass(frozen=True)
class Line:
    """A program at one split of the KV memory; `share` is the verifier's, None where both models have one budget.

    `low` and `high` are the ends of the interval around `right` of `total`. A problem that failed is none of those
    `answered`, which alone count for tokens and problems a second. `same` answers are those of the first split.
    `kv_bytes` and `forwards` go by the names of the models in the program.
    """

    program: str
    share: float | None
    kv_bytes: Mapping[str, int]
    right: int
    answered: int
    failed: int
    total: int
    low: float
    high: float
    tokens_per_second: float
    problems_per_second: float
    tokens_per_cpu_second: float
    seconds: float
    cpu_seconds: float
    same: int
    forwards: Mapping[str, Forwards]


def line_of(
    program: str,
    share: float | None,
    kv_bytes: Mapping[str, int],
    outcomes: Sequence[Outcome],
    seconds: float,
    cpu_seconds: float,
    forwards: Mapping[str, Forwards],
    first: Sequence[Outcome] | None = None,
) -> Line:
    """The figures of a run over all problems; `first` are the outcomes that answers are compared with."""
    answered = [outcome for outcome in outcomes if outcome.failure is None and outcome.unanswered is None]
    right = sum(outcome.correct is True for outcome in outcomes)
    tokens = sum(outcome.tokens_out for outcome in answered)
    interval = wilson(right, len(outcomes))
    return Line(
        program,
        share,
        kv_bytes,
        right,
        len(answered),
        sum(outcome.failure is not None for outcome in outcomes),
        len(outcomes),
        interval.low,
        interval.high,
        tokens / seconds,
        len(answered) / seconds,
        tokens / cpu_seconds,
        seconds,
        cpu_seconds,
        sum(one.answer == other.answer for one, other in zip(outcomes, first or outcomes, strict=True)),
        forwards,
    )


def forwards_in(trace: Path) -> dict[str, Forwards]:
    """The forwards of each model, by its id, of the run that wrote it. Raises ValueError where it is not whole."""
    reader = LineReader()
    found = forwards_of(read_trace(trace, reader))
    if notes := reader.findings.notes():
        raise ValueError("; ".join(notes))
    return found


def forwards_of(events: Iterable[Event]) -> dict[str, Forwards]:
    """The same, of events."""
    steps: dict[str, list[EngineStepped]] = {}
    for event in events:
        if isinstance(event, Lost):
            raise ValueError(f"the trace lacks {event.count:,} events")
        if isinstance(event, EngineStepped):
            steps.setdefault(event.report.model, []).append(event)
    return {model: _forwards(own) for model, own in steps.items()}


def _forwards(steps: Sequence[EngineStepped]) -> Forwards:
    reports = [step.report for step in steps]
    held = tuple(report.pages_held for report in reports)
    last = reports[-1]
    return Forwards(
        len(reports),
        sum(report.prefill_tokens for report in reports),
        sum(report.decode_tokens for report in reports),
        sum(figure(report, "seconds") for report in reports),
        last.pages,
        max(held),
        int(figure(last, "cached_tokens")),
        int(figure(last, "evictions")),
        int(figure(last, "thrashed")),
        last.preemptions,
        held,
    )
