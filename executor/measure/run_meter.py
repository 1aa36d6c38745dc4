"""A reader of the events of one run that adds up the figures of EXPLAIN ANALYZE and of the statistics, and of the
memory it held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.events import (
    EngineFigures,
    EngineStepped,
    Event,
    InstanceDone,
    InstanceStarted,
    OperatorDone,
)
from qpdsl.executor.requests.latencies import Waits, percentiles
from qpdsl.planner.cost.run_figures import MemoryPart, ModelFigures, OperatorFigures, RunFigures
from qpdsl.planner.cost.timed_steps import TimedSteps

_PARTS = ("mask_seconds", "head_seconds", "draft_seconds")


@dataclass(slots=True)
class _Operator:
    sums: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    squares: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, problem: _Operator) -> None:
        """Adds what it came to in a problem that has ended."""
        sums = problem.sums
        self.sums.update(sums)
        self.counts.update(problem.counts)
        tokens = sums["prompt_tokens"] + sums["sampled_tokens"]
        self.squares.update(rows=sums["rows_out"] ** 2, tokens=tokens**2)
        self.seconds += problem.seconds


@dataclass(slots=True)
class _Model:
    latest: StepReport | EngineFigures
    steps: int = 0
    prefill: int = 0
    decode: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    peak: int = 0
    held: int = 0
    # Seconds of the parts of forwards, by the names of the report's fields.
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0.0))
    waits: Waits = field(default_factory=Waits)
    times: TimedSteps = field(default_factory=TimedSteps)


class RunMeter:
    """`see` takes events, and `figures` gives their sums; those of operators are over the problems that have ended.

    `page_bytes` is the size of a KV page of each model and `kv_budget` the memory for all of them, both in bytes, where
    they are known. The time of a forward is divided between its prompt tokens and its drawn tokens by their number: one
    forward serves many operators, and the time that each of them alone would have taken cannot be known.
    """

    def __init__(self, page_bytes: Mapping[str, int] | None = None, kv_budget: int | None = None) -> None:
        self._page_bytes = page_bytes or {}
        self._kv_budget = kv_budget
        self._operators: dict[str, _Operator] = {}
        self._models: dict[str, _Model] = {}
        self._open: dict[str, dict[str, _Operator]] = {}
        # By problem and operator: the tokens that were drawn one after another, of the longest sample of each run.
        self._drawn: dict[str, Counter[str]] = {}
        self._ended: list[Counter[str]] = []
        self._running = 0
        self._most_running = 0
        self._done = 0
        self._failed = 0
        self._deadlines = self._kept = 0
        self._first: float | None = None
        self._last = 0.0
        self._peak_kv = 0
        self._memory = MemoryMeter(self._page_bytes)

    def see(self, event: Event) -> None:
        """A reader of the event stream. Greedy decoding that is run for comparison does not count."""
        if getattr(event, "baseline", False):
            return
        match event:
            case InstanceStarted():
                self._first = event.at if self._first is None else self._first
                self._running += 1
                self._most_running = max(self._most_running, self._running)
            case OperatorDone():
                self._operator(event)
            case EngineStepped():
                self._step(event)
            case InstanceDone():
                self._close(event.instance)
                self._running -= 1
                self._done += 1
                self._failed += event.error is not None
                self._last = event.at
                if event.deadline is not None:
                    self._deadlines += 1
                    self._kept += event.error is None and event.seconds <= event.deadline

    @property
    def times(self) -> dict[str, TimedSteps]:
        """What steps of each model took, by its id."""
        return {name: model.times for name, model in self._models.items()}

    def figures(self) -> RunFigures:
        # The sums of an operator that contains others repeat theirs.
        containers = {id[:dot] for id in self._operators for dot, char in enumerate(id) if char == "."}
        steps = [sum(longest for id, longest in drawn.items() if id not in containers) for drawn in self._ended]
        mean = sum(steps) / len(steps) if steps else 0.0
        return RunFigures(
            problems=self._done,
            failed=self._failed,
            in_flight=self._most_running,
            seconds=self._last - self._first if self._first is not None and self._done else 0.0,
            operators={id: _operator_figures(operator) for id, operator in self._operators.items()},
            models={name: self._model_figures(name, model) for name, model in self._models.items()},
            peak_kv=self._peak_kv if self._page_bytes else None,
            kv_budget=self._kv_budget,
            longest=max(steps) / mean if mean else 1.0,
            memory=self._memory.parts(),
            deadlines=self._deadlines,
            kept=self._kept,
        )

    def _operator(self, event: OperatorDone) -> None:
        operator = self._open.setdefault(event.instance, {}).setdefault(event.operator, _Operator())
        operator.sums.update(
            runs=1,
            rows_in=event.rows_in,
            rows_out=event.rows_out,
            prompt_tokens=event.prompt_tokens,
            cached_tokens=event.cached_tokens,
            sampled_tokens=event.sampled_tokens,
        )
        operator.counts.update(event.counts)
        operator.seconds += event.seconds
        # How many forwards in turn one problem waits for depends on the longest sample of each round.
        self._drawn.setdefault(event.instance, Counter())[event.operator] += event.counts.get("longest", 0)

    def _close(self, instance: str) -> None:
        """Adds the sums of a problem that has ended; unfinished problems would distort every mean."""
        for id, sums in self._open.pop(instance, {}).items():
            self._operators.setdefault(id, _Operator()).add(sums)
        if instance in self._drawn:
            self._ended.append(self._drawn.pop(instance))

    def _step(self, event: EngineStepped) -> None:
        report = event.report
        model = self._models.get(report.model)
        if model is None:
            model = self._models[report.model] = _Model(report)
        model.latest = report
        tokens = report.prefill_tokens + report.decode_tokens
        share = report.prefill_tokens / tokens if tokens else 0.0
        model.steps += 1
        model.prefill += report.prefill_tokens
        model.decode += report.decode_tokens
        seconds = getattr(report, "seconds", 0.0)
        model.prefill_seconds += seconds * share
        model.decode_seconds += seconds * (1 - share)
        for part in _PARTS:
            model.parts[part] += getattr(report, part, 0.0)
        model.waits.add(report.first_waits, report.waits)
        model.times.add(report.decode_tokens, report.prefill_tokens, figure(report, "worked_seconds"))
        model.peak = max(model.peak, report.pages_held)
        model.held += report.pages_held
        self._memory.step(report)
        held = sum(other.latest.pages_held * self._page_bytes.get(name, 0) for name, other in self._models.items())
        self._peak_kv = max(self._peak_kv, held)

    def _model_figures(self, name: str, model: _Model) -> ModelFigures:
        return ModelFigures(
            model.steps,
            model.prefill,
            model.decode,
            model.prefill_seconds,
            model.decode_seconds,
            model.latest.preemptions,
            getattr(model.latest, "evictions", 0),
            getattr(model.latest, "thrashed", 0),
            model.peak,
            model.latest.pages,
            self._page_bytes.get(name, 0),
            **model.parts,
            first_token=percentiles(model.waits.first),
            between_tokens=percentiles(model.waits.between),
            mean_pages=model.held / model.steps,
            cached_tokens=int(figure(model.latest, "cached_tokens")),
        )


def _operator_figures(operator: _Operator) -> OperatorFigures:
    return OperatorFigures(
        **operator.sums, seconds=operator.seconds, counts=dict(operator.counts), squares=dict(operator.squares)
    )


class MemoryMeter:
    """The peak and the mean of each part over the steps of all models; `page_bytes` is the size of a KV page of each.

    Other is what is taken beside weights, activations and the leased pages of keys and values: `kv` counts those pages
    that are held, and states. Steps of an engine that does not tell what is taken do not count.
    """

    def __init__(self, page_bytes: Mapping[str, int]) -> None:
        self._page_bytes = page_bytes
        # By model: bytes of weights, of leased pages and of held pages after its latest step.
        self._weights: dict[str, float] = {}
        self._leased: dict[str, float] = {}
        self._held: dict[str, float] = {}
        self._sums: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._steps = 0

    def step(self, report: StepReport | EngineFigures) -> None:
        self._weights[report.model] = figure(report, "weight_bytes")
        self._leased[report.model] = figure(report, "leased_bytes")
        states = figure(report, "state_bytes")
        self._held[report.model] = report.pages_held * self._page_bytes.get(report.model, 0) + states
        resident, activations = figure(report, "resident_bytes"), figure(report, "activation_bytes")
        if not resident:
            return
        weights, leased = sum(self._weights.values()), sum(self._leased.values())
        parts = {
            "weights": weights,
            "activations": activations,
            "other": max(resident - weights - leased - activations, 0.0),
            "kv_leased": leased,
            "kv": sum(self._held.values()),
        }
        self._steps += 1
        for name, size in parts.items():
            self._sums[name] = self._sums.get(name, 0.0) + size
            self._peaks[name] = max(self._peaks.get(name, 0.0), size)

    def parts(self) -> dict[str, MemoryPart]:
        """By name; nothing where no step told what is taken."""
        return {name: MemoryPart(peak, self._sums[name] / self._steps) for name, peak in self._peaks.items()}


def figure(report: StepReport | EngineFigures, name: str) -> float:
    """A figure of a report by its name, whether it comes from the engine or from a trace; 0 where it has none."""
    if isinstance(report, EngineFigures):
        return report.others.get(name, 0.0)
    return float(getattr(report, name))
