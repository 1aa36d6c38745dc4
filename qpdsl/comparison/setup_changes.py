"""What two sides were run with that is not the same, and whether both drew by the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from qpdsl.comparison.side import Side
from qpdsl.planner.values.json_values import shown
from qpdsl.run_store.run_record import RunRecord

# Parts of a fingerprint of which the record says more, and those that name a model.
_TOLD = {"program", "arguments", "seed", "plan", "policy"}
_DIGESTS = {"python"}
_MODEL = "model `"


@dataclass(frozen=True, slots=True)
class SetupChange:
    """A part of the set-up as it was on either side, for people. Both are empty where the values say nothing."""

    name: str
    first: str = ""
    second: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """What differs: by name, and lines of unified diffs of the program's text and of the plan as EXPLAIN shows it.

    `same_noise`: the same seeds and models, so that both sides drew by the same random numbers wherever the text before
    a sample was the same.
    """

    changes: tuple[SetupChange, ...]
    source: tuple[str, ...]
    plan: tuple[str, ...]
    same_noise: bool


def setup(first: Side, second: Side) -> Setup:
    """How the set-ups of two sides differ."""
    one, other = first.record, second.record
    return Setup(
        changes=tuple(_changes(first, second)),
        source=_diff(one.source, other.source),
        plan=_diff(one.plan, other.plan),
        same_noise=_draws(first) == _draws(second),
    )


def _changes(first: Side, second: Side) -> Iterator[SetupChange]:
    one, other = first.record, second.record
    yield from _named("program", one.program, other.program)
    if one.source == other.source and one.fingerprint.get("program") != other.fingerprint.get("program"):
        yield SetupChange("what the program reads")
    yield from _parts("", one.parameters, other.parameters)
    yield from _parts("model ", one.models, other.models)
    for name in one.models.keys() & other.models.keys():
        key = f"{_MODEL}{name}`"
        if one.models[name] == other.models[name] and one.fingerprint.get(key) != other.fingerprint.get(key):
            yield SetupChange(f"files of model {name}")
    yield from _named("seed", _seeds(first), _seeds(second))
    yield from _named("rules", one.planned, other.planned)
    if one.policy != other.policy:
        yield SetupChange("budget", _policy(one), _policy(other))
    yield from _named("grader", one.grader, other.grader)
    yield from _named("input", one.input, other.input)
    if one.input == other.input and one.input_digest != other.input_digest:
        yield SetupChange("what the input holds")
    yield from _build(one.fingerprint, other.fingerprint)
    yield from _named("machine", one.machine, other.machine)


def _named(name: str, first: Any, second: Any) -> Iterator[SetupChange]:
    if first != second:
        yield SetupChange(name, shown(first), shown(second))


def _parts(prefix: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[SetupChange]:
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second or first[name] != second[name]:
            texts = (shown(side[name]) if name in side else "not set" for side in (first, second))
            yield SetupChange(f"{prefix}{name}", *texts)


def _seeds(side: Side) -> str:
    return ", ".join(map(str, side.seeds))


def _policy(record: RunRecord) -> str:
    """The budget that a policy keeps, as far as it says so."""
    if record.policy is None:
        return "none"
    budget, unit = record.policy.get("budget"), record.policy.get("unit")
    return f"{budget} {unit}" if budget is not None and unit is not None else "another policy"


def _build(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[SetupChange]:
    """What the runs were computed with, as far as nothing else says it; of lists the parts that differ."""
    for name in dict.fromkeys((*first, *second)):
        before, after = first.get(name, "default"), second.get(name, "default")
        if before == after or name in _TOLD or name.startswith(_MODEL):
            continue
        if name in _DIGESTS:
            yield SetupChange(name)
        else:
            one, other = before.split(", "), after.split(", ")
            yield SetupChange(
                name,
                ", ".join(part for part in one if part not in other),
                ", ".join(part for part in other if part not in one),
            )


def _draws(side: Side) -> tuple[object, ...]:
    """What random numbers depend on, besides the text before a sample."""
    fingerprint = side.record.fingerprint
    models = {name: value for name, value in fingerprint.items() if name.startswith(_MODEL)}
    return sorted(side.seeds), fingerprint.get("noise"), side.record.models, models


def _diff(first: str, second: str) -> tuple[str, ...]:
    """The lines of a unified diff, without the two that name the files; empty for equal texts."""
    return tuple(unified_diff(first.splitlines(), second.splitlines(), lineterm="", n=2))[2:]
