"""The tables of `search.run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.common.results import Ratio


def page(results: Mapping[str, Any]) -> str:
    """The results as a page of tables; parts that were not run are left out."""
    lines = ["# Beam search, planned", ""]
    for name, part in (
        ("throughput", _throughput),
        ("rules", _rules),
        ("memory", _memory),
        ("splits", _splits),
        ("vllm", _vllm),
    ):
        if name in results:
            lines += [*part(results[name]), ""]
    return "\n".join([*lines, f"Measured on: {results['machine']['sentence']}."]) + "\n"


def _throughput(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Against the loop ({figures['loop_problems']} problems) and no rules ({figures['problems']} problems)"
    yield ""
    planned = figures["planned"]
    rows = []
    for name, goal in (("loop", "10x"), ("no rules", "2x"), ("planned", "")):
        side = figures[name]
        rows.append(
            [
                name,
                f"{1 / side['seconds_a_problem']:.2f}",
                f"{side['seconds_a_problem'] / planned['seconds_a_problem']:.1f}x",
                f"{side['cpu_seconds_a_problem'] / planned['cpu_seconds_a_problem']:.1f}x",
                goal,
            ]
        )
    yield from table(["", "problems a second", "planned is faster by", "by process time", "goal"], rows)
    yield ""
    answers = figures["answers"]
    yield (
        f"The same answers: planned and no rules {answers['planned as no rules']}, planned and the loop drawing with "
        f"the same noise {answers['planned as the loop with the same noise']}; {answers['near ties']} near ties."
    )
    yield (
        f"Of the samples run ahead {_share(planned['run-ahead samples used'])} were used; the score cache knew "
        f"{_share(planned['score cache hits'])} of the steps asked for; {_share(planned['prompt tokens cached'])} of "
        f"prompt tokens were in the prefix cache."
    )


def _rules(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## One rule switched off ({figures['problems']} problems)"
    yield ""
    base = figures["all rules"]
    rows = [
        [
            name,
            f"{variant['seconds']:.1f}",
            f"{variant['cpu_seconds'] / base['cpu_seconds']:.2f}x",
            f"{variant['computed tokens']:,}",
            _share(variant["prompt tokens cached"]),
            _share(variant["run-ahead samples used"]),
            _share(variant["score cache hits"]),
            variant["same answers"],
        ]
        for name, variant in figures.items()
        if isinstance(variant, dict)
    ]
    head = ["without", "seconds", "process time", "computed tokens", "cached", "run-ahead used", "scores known", "same"]
    yield from table(head, rows)
    if "in_flight" in figures:
        yield ""
        yield "Without `in_flight` nothing runs ahead either: samples do so only below the floor that it sets."
    if figures["unused"]:
        yield ""
        yield f"Rules that decide nothing about this program: {', '.join(figures['unused'])}."


def _memory(figures: Mapping[str, Any]) -> Iterator[str]:
    held = f"{figures['peak_bytes'] / 2**20:.1f} MiB"
    yield f"## KV memory, of the {held} held where it is ample ({figures['problems']} problems)"
    yield ""
    rows = [
        [
            f"{budget['part']:.0%}",
            f"{budget['seconds']:.1f}",
            f"{budget['cpu_seconds']:.1f}",
            _share(budget["prefix hit rate"]),
            *(_share(rate) for rate in budget.get("hits by model", {}).values()),
            *(f"{budget[name]:,}" for name in ("evicted", "thrashed", "preempted", "computed tokens")),
            budget["same answers"],
        ]
        for budget in figures["budgets"]
    ]
    head = [
        "budget",
        "seconds",
        "process",
        "prefix hits",
        *(f"of `{model}`" for model in figures["budgets"][0].get("hits by model", {})),
        "evicted",
        "thrashed",
        "preempted",
        "computed tokens",
        "same",
    ]
    yield from table(head, rows)


def _splits(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Fixed parts of {figures['bytes'] / 2**20:.1f} MiB against one budget ({figures['problems']} problems)"
    yield ""
    rows = [
        [
            name,
            f"{split['seconds']:.1f}",
            f"{split['cpu_seconds']:.1f}",
            f"{split['computed tokens']:,}",
            f"{split['preempted']:,}",
        ]
        for name, split in figures.items()
        if isinstance(split, dict)
    ]
    yield from table(["", "seconds", "process", "computed tokens", "preempted"], rows)


def _vllm(figures: Mapping[str, Any]) -> Iterator[str]:
    for model, of_model in figures.items():
        yield f"## Against search-and-learn's loop on vLLM: `{model}` ({of_model['problems']} problems)"
        yield ""
        rows = [
            [
                name,
                f"{1 / side['seconds_a_problem']:.2f}",
                f"{Ratio(**side['slower_by'])}x",
                f"{Ratio(**side['slower_by_cpu'])}x",
                f"{Ratio(**side['slower_by_token'])}x",
                f"{side['sampled_a_problem']:,.0f}",
                _share(side["right"]),
                _share(side.get("same_answers")),
                f"{of_model['goals'][name]:g}x" if name in of_model["goals"] else "",
            ]
            for name, side in of_model["sides"].items()
        ]
        head = ["", "problems a second", "planned is faster by", "by process time", "a token sampled"]
        head += ["tokens a problem", "right", "answers as planned", "goal"]
        yield from table(head, rows)
        yield ""
        shares = [side["duplicates"] for side in of_model["sides"].values() if side["duplicates"] is not None]
        if shares:
            yield (
                f"Of the loop's candidates {min(shares):.0%} to {max(shares):.0%} had a text that was seen before for "
                "the same problem: whoever scores a text once gains by that."
            )
        yield from (f"Without {name}: {' '.join(why.split())}" for name, why in of_model["absent"].items())
        yield ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
