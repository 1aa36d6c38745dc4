"""Statistics of earlier runs: what each operator of a program came to for one problem, on average.

Kept by the program's fingerprint and the values of its numeric parameters, in one file that is never required: what
cannot be read counts as empty, and a version that is not known as well. It is bounded: the programs that were used
least recently go first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.measured import OperatorFigures, RunFigures
from qpdsl.planner.cost.stored import count, mapping, number, text
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, evaluate
from qpdsl.planner.plan.physical import PhysicalPlan, everything

VERSION = 1
STATISTICS_FILE = "statistics.json"
MOST_PROGRAMS = 256
# Earlier runs count for no more than this many problems, so that a change shows.
_MOST_WEIGHT = 200.0
# How many device and model pairs a program remembers the clock of.
_MOST_CLOCKS = 8
_MEANS = ("runs", "rows_in", "rows_out", "prompt_tokens", "cached_tokens", "sampled_tokens")

# What of an operator is the same however it runs; the rest of what was measured hangs on the plan.
_KEPT = (
    "going", "samples", "longest", "context", "texts", "text_tokens", "first_tokens", "new_tokens", "steps",
    "steps_known", "run_ahead", "run_ahead_used", "given_up",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """Means over problems. `runs` are rounds inside a `repeat`; `counts`: see `Usage`.

    `most` is how many rows the planner took for the most that the operator could make.
    """

    runs: float = 0.0
    rows_in: float = 0.0
    rows_out: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    sampled_tokens: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)
    most: float | None = None

    def count(self, name: str) -> float:
        return self.counts.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class ProgramStatistics:
    """What `problems` problems came to under these parameter values.

    `clock` maps a device (see `clock_key`) to the measured over the predicted seconds of the latest runs on it;
    `longest`: see `RunFigures`.
    """

    name: str
    models: Mapping[str, str]
    values: Mapping[str, Value]
    problems: int
    longest: float
    operators: Mapping[str, OperatorStatistics]
    clock: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Statistics:
    """All that is kept, by fingerprint and values; the latest used last."""

    programs: dict[str, ProgramStatistics] = field(default_factory=dict)

    def of(self, plan: PhysicalPlan) -> ProgramStatistics | None:
        """Those of a program under the values that the plan was made with."""
        return self.programs.get(_key(plan))

    def like(self, plan: PhysicalPlan) -> ProgramStatistics | None:
        """The latest of a program under any values."""
        lead = fingerprint(plan)
        return next((found for key, found in reversed(self.programs.items()) if key.startswith(lead)), None)

    def add(self, plan: PhysicalPlan, figures: RunFigures) -> None:
        """Takes a run in."""
        problems = figures.problems - figures.failed
        if problems < 1:
            return
        key = _key(plan)
        before = self.programs.pop(key, None)
        most = {node.id: node.rows for node in everything(plan.ops)}
        new = {id: _means(found, figures.problems, most.get(id)) for id, found in figures.operators.items()}
        weight = 1.0 if before is None else problems / (problems + min(before.problems, _MOST_WEIGHT))
        known = {} if before is None else before.operators
        merged = {**known, **{id: _mixed(known.get(id), found, weight) for id, found in new.items()}}
        self.programs[key] = ProgramStatistics(
            plan.name,
            dict(plan.models),
            _numbers(plan),
            problems + (0 if before is None else before.problems),
            figures.longest if before is None else before.longest + (figures.longest - before.longest) * weight,
            merged,
            {} if before is None else before.clock,
        )
        for oldest in list(self.programs)[:-MOST_PROGRAMS]:
            del self.programs[oldest]

    def add_clock(self, plan: PhysicalPlan, device: str, ratio: float) -> None:
        """Takes in how many times as long as predicted a run took. The mean of the latest two (geometric) counts."""
        found = self.of(plan)
        if found is None or not ratio > 0:
            return
        clock = dict(found.clock)
        before = clock.pop(device, ratio)
        clock[device] = (before * ratio) ** 0.5
        self.programs[_key(plan)] = replace(found, clock=dict(list(clock.items())[-_MOST_CLOCKS:]))

    def forget_clock(self, device: str) -> None:
        """Drops how far seconds on a device were off: it is measured anew."""
        for key, found in self.programs.items():
            clock = {name: ratio for name, ratio in found.clock.items() if name != device}
            self.programs[key] = replace(found, clock=clock)

    def forget(self, name: str | None = None) -> int:
        """Drops the statistics of a program by its name, or of all; returns how many entries went."""
        gone = [key for key, found in self.programs.items() if name is None or found.name == name]
        for key in gone:
            del self.programs[key]
        return len(gone)

    def to_text(self) -> str:
        programs = {key: asdict(found) for key, found in self.programs.items()}
        return json.dumps({"version": VERSION, "programs": programs}, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_text(cls, written: str) -> Statistics:
        """Empty where the text is not one of this version, or damaged."""
        try:
            data = json.loads(written)
            if data["version"] != VERSION:
                return cls()
            return cls({key: _program(found) for key, found in mapping(data["programs"]).items()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()


def fingerprint(plan: PhysicalPlan) -> str:
    """A digest of what a program generates with and how its rows go; columns that a rule may drop do not count."""
    state = blake2b(digest_size=12)
    state.update(repr((plan.name, sorted(plan.models.items()), list(_meaning(plan)))).encode("utf-8", "replace"))
    return state.hexdigest()


def clock_key(device: Device) -> str:
    """What the speed of a run hangs on, besides its program and its models, and whether its figures are nominal."""
    return f"{device.kind} {device.dtype} {device.threads}" + ("" if device.measured else " (nominal)")


def _meaning(plan: PhysicalPlan) -> Iterator[object]:
    for node in everything(plan.ops):
        if isinstance(
            node.op, ops.SetContext | ops.Generate | ops.TopK | ops.Split | ops.Repeat | ops.Where | ops.Vote
        ):
            parts = [(part.name, repr(getattr(node.op, part.name))) for part in fields(node.op)]
            yield type(node.op).__name__, [part for part in parts if part[0] not in ("span", "body", "arms")]


def _numbers(plan: PhysicalPlan) -> dict[str, Value]:
    """The values of numeric parameters; what a text says does not change the shape of the work."""
    wanted = [param for param in plan.params if param.type in ("int", "float", "bool")]
    return {param.name: evaluate(param.default, {}) for param in wanted if param.default is not None}


def _key(plan: PhysicalPlan) -> str:
    return f"{fingerprint(plan)} {json.dumps(_numbers(plan), sort_keys=True)}"


def _means(figures: OperatorFigures, problems: int, most: float | None) -> OperatorStatistics:
    return OperatorStatistics(
        figures.runs / problems,
        figures.rows_in / problems,
        figures.rows_out / problems,
        figures.prompt_tokens / problems,
        figures.cached_tokens / problems,
        figures.sampled_tokens / problems,
        {name: figures.counts[name] / problems for name in _KEPT if name in figures.counts},
        most,
    )


def _mixed(before: OperatorStatistics | None, now: OperatorStatistics, weight: float) -> OperatorStatistics:
    if before is None:
        return now

    def mix(old: float, new: float) -> float:
        return old + (new - old) * weight

    plain = {name: mix(getattr(before, name), getattr(now, name)) for name in _MEANS}
    names = dict.fromkeys([*before.counts, *now.counts])
    # What only one kind of plan counts is not diluted by the others.
    counts = {name: _mix_known(before.counts.get(name), now.counts.get(name), weight) for name in names}
    return replace(now, **plain, counts=counts)


def _mix_known(old: float | None, new: float | None, weight: float) -> float:
    if old is None or new is None:
        return old if new is None and old is not None else new or 0.0
    return old + (new - old) * weight


def _program(data: Mapping[str, Any]) -> ProgramStatistics:
    return ProgramStatistics(
        text(data["name"]),
        {text(name): text(model) for name, model in mapping(data["models"]).items()},
        {name: _scalar(value) for name, value in mapping(data["values"]).items()},
        count(data["problems"]),
        number(data["longest"]),
        {id: _operator(mapping(found)) for id, found in mapping(data["operators"]).items()},
        {device: number(ratio, positive=True) for device, ratio in mapping(data["clock"]).items()},
    )


def _operator(data: Mapping[str, Any]) -> OperatorStatistics:
    means = {name: number(data[name]) for name in _MEANS}
    counts = {name: number(value) for name, value in mapping(data["counts"]).items()}
    return OperatorStatistics(**means, counts=counts, most=None if data["most"] is None else number(data["most"]))


def _scalar(value: Any) -> Value:
    """The value of a numeric parameter, of either sign."""
    if isinstance(value, bool):
        return value
    number(abs(value))
    return value  # type: ignore[no-any-return]
