"""What a run took, for people and for programs: requests to servers, waits for tokens, filters and their shadows.

`latencies.py` defines a wait. Those of a baseline that runs beside the program count too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qpdsl.executor.events.events import REPLICA_SIGN, EngineStepped, Event
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.latencies import PERCENTILES, Waits, percentiles
from qpdsl.planner.cost.run_figures import ANSWERS_FOUND, SAVED_COUNTS, THOUGHT_TOKENS, UNFINISHED, calls_json
from qpdsl.planner.cost.statistics import shadow_words
from qpdsl.planner.explain.quantities import calls_words

if TYPE_CHECKING:
    # It loads numpy, which a dashboard does without.
    from qpdsl.executor.requests.request import Calls

_BATCH = "flush_"
SHADOWS = ("shadowed", "differed")


def total_calls(calls: Mapping[str, Calls]) -> Calls | None:
    """The calls of all models together; None where no model is on a server."""
    every = [*calls.values()]
    return sum(every[1:], every[0]) if every else None


def call_facts(calls: Calls | None, counts: Mapping[str, int] | None = None) -> list[tuple[str, str]]:
    """One line for people, as a name and its value; none where no server was to be asked.

    `counts`, those of a `Usage`, tell of calls that were saved.
    """
    if calls is None:
        return []
    words = [*calls_words(_counts(calls) | _saved(counts or {}))] or ["0 requests"]
    words.append(f"{calls.prompt_tokens or 0:,} tokens in, {calls.sampled_tokens:,} out")
    return [("servers", ", ".join(words))]


def calls_record(calls: Calls | None, counts: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The same under one stable key, empty where no server was to be asked."""
    if calls is None:
        return {}
    tokens = {"tokens_in": calls.prompt_tokens, "tokens_out": calls.sampled_tokens}
    told = calls_json(_counts(calls) | _saved(counts or {})) or {}
    names = ("requests", "retries", "replayed", "server_cached", "saved_calls", "wasted_tokens", "cost")
    return {"servers": {**{name: told.get(name, 0) for name in names}, **tokens}}


def _saved(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in SAVED_COUNTS}


def _counts(calls: Calls) -> dict[str, int]:
    return {
        "requests": calls.requests,
        "retries": calls.retries,
        "replayed": calls.replayed,
        "server_cached": calls.cached_tokens,
        "cost_millionths": round(calls.cost * 1e6),
    }


def count_waits(stream: EventStream) -> Callable[[], Mapping[str, Waits]]:
    """What gives the waits by model in the stream's events from now on to when it is called."""
    waits: dict[str, Waits] = {}

    def see(event: Event) -> None:
        if isinstance(event, EngineStepped):
            report = event.report
            # The replicas of a cluster are counted together.
            model = report.model.partition(REPLICA_SIGN)[0]
            waits.setdefault(model, Waits()).add(report.first_waits, report.waits)

    def counted() -> Mapping[str, Waits]:
        stream.deliver()
        return waits

    stream.subscribe(see, patient=True)
    return counted


def wait_facts(waits: Mapping[str, Waits]) -> list[tuple[str, str]]:
    """For people: how long samples waited for their first token, and for each other one; a fact for each model."""
    facts: list[tuple[str, str]] = []
    for model, counted in waits.items():
        for name, counts in (("first token", counted.first), ("each token", counted.between)):
            if found := percentiles(counts):
                parts = (f"p{share} {1e3 * wait:,.1f} ms" for share, wait in zip(PERCENTILES, found, strict=True))
                facts.append((name, f"{', '.join(parts)} ({model})"))
    return facts


def waits_json(waits: Mapping[str, Waits]) -> dict[str, dict[str, dict[str, float] | None]]:
    """For programs: percentiles in seconds by model, None where there were no such tokens."""

    def shares(counts: Mapping[int, int]) -> dict[str, float] | None:
        found = percentiles(counts)
        return {f"p{share}": round(wait, 6) for share, wait in zip(PERCENTILES, found, strict=True)} if found else None

    return {
        model: {"first_token": shares(counted.first), "between_tokens": shares(counted.between)}
        for model, counted in waits.items()
    }


@dataclass(frozen=True, slots=True)
class FilterFigures:
    """Sums over all samples that two models wrote.

    Of `draws` of the small model `decided` stood, and `alone` of `samples` never asked the large one. That drew
    `large_draws` tokens and computed `large_tokens` for them, prompts and what it caught up on, in `batches`.
    """

    samples: int
    alone: int
    draws: int
    decided: int
    large_draws: int
    large_tokens: int
    batches: int

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> FilterFigures | None:
        """Those of the counts of a `Usage`; None where nothing was filtered."""
        if not counts.get("filter_samples"):
            return None
        # Each request of a batch counts it by the batch's size.
        batches = sum(
            count / int(name.removeprefix(_BATCH)) for name, count in counts.items() if name.startswith(_BATCH)
        )
        return cls(
            counts["filter_samples"],
            counts.get("filter_alone", 0),
            counts.get("filter_draws", 0),
            counts.get("filter_sure", 0),
            counts.get("large_draws", 0),
            counts.get("large_tokens", 0),
            round(batches),
        )

    def facts(self) -> list[tuple[str, str]]:
        """For people: names and values."""
        decided = f"decided {self.decided:,} of {self.draws:,} draws ({self.decided / max(self.draws, 1):.1%})"
        small = f"{decided}, {self.alone:,} of {self.samples:,} samples alone"
        large = f"drew {self.large_draws:,} tokens, computed {self.large_tokens:,} with prompts and catching up"
        if self.batches:
            large += f", in {self.batches:,} batches of {self.large_draws / self.batches:.1f}"
        return [("small model", small), ("large model", large)]

    def to_json(self, *, timing: bool) -> dict[str, Any]:
        """For programs; the keys are stable. What depends on when requests came is there with `timing`."""
        figures = {
            "samples": self.samples,
            "alone": self.alone,
            "draws": self.draws,
            "decided": self.decided,
            "large_draws": self.large_draws,
        }
        return figures | ({"large_tokens": self.large_tokens, "batches": self.batches} if timing else {})


def kept_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Those of a `Usage`'s counts that say something of answers, ends, thoughts, filters, shadows and saved calls."""
    kinds, names = ("filter_", "large_", _BATCH, ANSWERS_FOUND), (THOUGHT_TOKENS, UNFINISHED, *SHADOWS, *SAVED_COUNTS)
    return {name: count for name, count in counts.items() if name.startswith(kinds) or name in names}


def tokens_words(prompt: int, sampled: int, thought: int) -> str:
    """For people: tokens in and out, and how many of those are thoughts, where any are."""
    return f"{prompt:,} in, {sampled:,} out" + (f" ({thought:,} thought)" if thought else "")


def found_facts(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """For people: by which rule answers were found in how many texts; nothing where none was looked for by rules."""
    found = found_json(counts).get("found", {})
    return [("found", ", ".join(f"{count:,} {rule}" for rule, count in found.items()))] if found else []


def found_json(counts: Mapping[str, int]) -> dict[str, Any]:
    """For programs; the keys are stable. Nothing where no answer was looked for by rules."""
    found = {rule: counts.get(ANSWERS_FOUND + rule, 0) for rule in ("boxed", "stated", "marked", "none")}
    return {"found": {rule: count for rule, count in found.items() if count}} if any(found.values()) else {}


def shadow_facts(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """For people: how often the full model would have drawn another token; nothing where nobody looked."""
    shadowed, differed = (counts.get(name, 0) for name in SHADOWS)
    return [("shadows", shadow_words(shadowed, differed))] if shadowed else []


def shadow_json(counts: Mapping[str, int]) -> dict[str, Any]:
    """For programs; the keys are stable. Nothing where nobody looked."""
    shadows = {name: counts.get(name, 0) for name in SHADOWS}
    return {"shadow": shadows} if shadows["shadowed"] else {}
