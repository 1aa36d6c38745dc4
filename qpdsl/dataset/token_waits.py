"""How long the samples of a run waited for their tokens: counted from its events, and told in summaries.

`latencies.py` says what counts as a wait. Those of a baseline that runs beside the program count too.
"""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.executor.events.events import REPLICA_SIGN, EngineStepped, Event
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.latencies import PERCENTILES, Waits, percentiles


def count_waits(stream: EventStream) -> Mapping[str, Waits]:
    """The waits by model, which grow with the stream's events from now on."""
    waits: dict[str, Waits] = {}

    def see(event: Event) -> None:
        if isinstance(event, EngineStepped):
            report = event.report
            # The replicas of a cluster are counted together.
            model = report.model.partition(REPLICA_SIGN)[0]
            waits.setdefault(model, Waits()).add(report.first_waits, report.waits)

    stream.subscribe(see)
    return waits


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
