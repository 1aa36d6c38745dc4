"""The tables of `search.run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def page(found: Mapping[str, Any]) -> str:
    """The results as a page of tables; parts that were not run are left out."""
    lines = ["# Beam search, planned", ""]
    for name, part in (
        ("throughput", _throughput),
        ("rules", _rules),
        ("memory", _memory),
        ("splits", _splits),
    ):
        if name in found:
            lines += [*part(found[name]), ""]
    return "\n".join([*lines, f"Measured on: {found['machine']['sentence']}."]) + "\n"


def _throughput(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Against the loop ({found['loop_problems']} problems) and no rules ({found['problems']} problems)"
    yield ""
    planned = found["planned"]
    rows = []
    for name, goal in (("loop", "10x"), ("no rules", "2x"), ("planned", "")):
        one = found[name]
        rows.append(
            [
                name,
                f"{1 / one['seconds_a_problem']:.2f}",
                f"{one['seconds_a_problem'] / planned['seconds_a_problem']:.1f}x",
                f"{one['cpu_seconds_a_problem'] / planned['cpu_seconds_a_problem']:.1f}x",
                goal,
            ]
        )
    yield from table(["", "problems a second", "planned is faster by", "by process time", "goal"], rows)
    yield ""
    answers = found["answers"]
    yield (
        f"The same answers: planned and no rules {answers['planned as no rules']}, planned and the loop drawing with "
        f"the same noise {answers['planned as the loop with the same noise']}; {answers['near ties']} near ties."
    )
    yield (
        f"Of the samples run ahead {_share(planned['run-ahead samples used'])} were used; the score cache knew "
        f"{_share(planned['score cache hits'])} of the steps asked for; {_share(planned['prompt tokens cached'])} of "
        f"prompt tokens were in the prefix cache."
    )


def _rules(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"## One rule switched off ({found['problems']} problems)"
    yield ""
    base = found["all rules"]
    rows = [
        [
            name,
            f"{one['seconds']:.1f}",
            f"{one['cpu_seconds'] / base['cpu_seconds']:.2f}x",
            f"{one['computed tokens']:,}",
            _share(one["prompt tokens cached"]),
            _share(one["run-ahead samples used"]),
            _share(one["score cache hits"]),
            one["same answers"],
        ]
        for name, one in found.items()
        if isinstance(one, dict)
    ]
    head = ["without", "seconds", "process time", "computed tokens", "cached", "run-ahead used", "scores known", "same"]
    yield from table(head, rows)
    if "in_flight" in found:
        yield ""
        yield "Without `in_flight` nothing runs ahead either: samples do so only below the floor that it sets."
    if found["unused"]:
        yield ""
        yield f"Rules that decide nothing about this program: {', '.join(found['unused'])}."


def _memory(found: Mapping[str, Any]) -> Iterator[str]:
    held = f"{found['peak_bytes'] / 2**20:.1f} MiB"
    yield f"## KV memory, of the {held} held where it is ample ({found['problems']} problems)"
    yield ""
    rows = [
        [
            f"{one['part']:.0%}",
            f"{one['seconds']:.1f}",
            f"{one['cpu_seconds']:.1f}",
            _share(one["prefix hit rate"]),
            *(f"{one[name]:,}" for name in ("evicted", "thrashed", "preempted", "computed tokens")),
            one["same answers"],
        ]
        for one in found["budgets"]
    ]
    head = [
        "budget",
        "seconds",
        "process",
        "prefix hits",
        "evicted",
        "thrashed",
        "preempted",
        "computed tokens",
        "same",
    ]
    yield from table(head, rows)


def _splits(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Fixed parts of {found['bytes'] / 2**20:.1f} MiB against one budget ({found['problems']} problems)"
    yield ""
    rows = [
        [
            name,
            f"{one['seconds']:.1f}",
            f"{one['cpu_seconds']:.1f}",
            f"{one['computed tokens']:,}",
            f"{one['preempted']:,}",
        ]
        for name, one in found.items()
        if isinstance(one, dict)
    ]
    yield from table(["", "seconds", "process", "computed tokens", "preempted"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
