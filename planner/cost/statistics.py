"""Statistics of earlier runs: the figures of each operator of a program for one problem, on average.

They are keyed by the program's fingerprint and the values of its numeric parameters, and kept in one file that is never
required. The file is bounded: the least recently used programs are dropped first.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, get_args

from qpdsl.grammar.words import DraftMethod
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures
from qpdsl.planner.cost.server_times import ServerTimes, server_times_from, waits_of
from qpdsl.planner.cost.validation import count, mapping, number, peak, text
from qpdsl.planner.cost.way_losses import WayLoss, loss_from, losses_of
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.values.value import Value

VERSION = 4
STATISTICS_FILE = "statistics.json"
MOST_PROGRAMS = 256
# Earlier runs count for at most this many problems, so that a change shows.
_MOST_WEIGHT = 200.0
# For how many devices a program keeps a clock.
_MOST_CLOCKS = 8
_FADED = 1e-9
_MOST_LOSSES = 1024
_MOST_SERVERS = 256
# Parts of an operator that do not tell one program from another, or stand in the operators inside it.
_NOT_PRINTED = ("span", "body", "arms", "draft")
DRAFT_METHODS = tuple(method for method in get_args(DraftMethod) if method != "none")
_MEANS = ("runs", "rows_in", "rows_out", "prompt_tokens", "cached_tokens", "sampled_tokens")
# The counts that are the same however an operator runs, or that plans of one kind alone have.
_PLAN_INDEPENDENT = (
    "going", "samples", "longest", "context", "texts", "text_tokens", "first_tokens", "new_tokens", "steps",
    "steps_known", "run_ahead", "run_ahead_used", "given_up", "forced", "would_draws", "would_rounds", "would_drafted",
    *(f"{way}_{what}" for way in DRAFT_METHODS for what in ("drafted", "rounds", "draws", "accepted", "rejected")),
    "exits", "refined", "late", "skipped", "filter_samples", "filter_alone", "filter_draws", "filter_sure",
    "large_draws", "large_tokens",
)  # fmt: skip
# Counts of draws by the ids that a mask allowed (`allowed_37`) are kept by the bits of that number.
_ALLOWED, ALLOWED_BITS = "allowed_", "ids_"


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """Means over problems. Inside a `repeat`, `runs` are its rounds. For `counts` see `Usage`.

    `most` is the planner's bound on the rows that the operator can make, `words` is the operator as people read it.
    """

    runs: float = 0.0
    rows_in: float = 0.0
    rows_out: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    sampled_tokens: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)
    most: float | None = None
    words: str = ""

    def count(self, name: str) -> float:
        return self.counts.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class ProgramStatistics:
    """The statistics of `problems` problems under these parameter values.

    `clock` maps a device (see `clock_key`) to the ratio of measured to predicted seconds in the latest runs on it. For
    `longest` see `RunFigures`.
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
    """The statistics of all programs, by fingerprint and values; the most recently used last.

    `losses` are those of ways to decode, by operator and way, the latest last; see `way_losses.py`. `servers` holds
    what was waited for models on servers, by their ids, the latest last.
    """

    programs: dict[str, ProgramStatistics] = field(default_factory=dict)
    losses: dict[str, WayLoss] = field(default_factory=dict)
    servers: dict[str, ServerTimes] = field(default_factory=dict)

    def of(self, plan: PhysicalPlan) -> ProgramStatistics | None:
        """The statistics of a program under the values that the plan was made with."""
        return self.programs.get(_key(plan))

    def like(self, plan: PhysicalPlan) -> ProgramStatistics | None:
        """The latest statistics of a program under any values."""
        prefix = fingerprint(plan)
        return next((entry for key, entry in reversed(self.programs.items()) if key.startswith(prefix)), None)

    def add(self, plan: PhysicalPlan, figures: RunFigures, words: Mapping[str, str] | None = None) -> None:
        """Adds the figures of a run; `words` are its operators as people read them, by id."""
        problems = figures.problems - figures.failed
        if problems < 1:
            return
        most = {node.id: node.rows for node in everything(plan.ops)}
        shown = words or {}
        means = {
            id: _means(total, figures.problems, most.get(id), shown.get(id, ""))
            for id, total in figures.operators.items()
        }
        models, values = dict(plan.models), _numbers(plan)
        self._join(_key(plan), ProgramStatistics(plan.name, models, values, problems, figures.longest, means))
        self._add_losses(plan, figures)
        self._add_waits(plan, figures)

    def join(self, later: Statistics) -> None:
        """Adds the statistics of later runs, as if each of them had been added here."""
        for key, entry in later.programs.items():
            self._join(key, entry)
            for device, ratio in entry.clock.items():
                self._add_clock(key, device, ratio)
        for key, loss in later.losses.items():
            self._add_loss(key, loss)
        for model, times in later.servers.items():
            self._add_times(model, self.servers.get(model, ServerTimes()).joined(times))

    def _join(self, key: str, new: ProgramStatistics) -> None:
        """Adds the means of later problems of a program, whose clock does not count."""
        before = self.programs.pop(key, None)
        if before is None:
            self.programs[key] = replace(new, clock={})
        else:
            weight = new.problems / (new.problems + min(before.problems, _MOST_WEIGHT))
            old = before.operators
            merged = {**old, **{id: _weighted(old.get(id), means, weight) for id, means in new.operators.items()}}
            self.programs[key] = replace(
                new,
                problems=new.problems + before.problems,
                longest=before.longest + (new.longest - before.longest) * weight,
                operators=merged,
                clock=before.clock,
            )
        for oldest in list(self.programs)[:-MOST_PROGRAMS]:
            del self.programs[oldest]

    def loss(self, plan: PhysicalPlan, operator: str, way: str | None) -> WayLoss | None:
        """What earlier runs saw of a way to decode at an operator of a program, by its id; None where nobody looked."""
        return None if way is None else self.losses.get(_loss_key(plan, operator, way))

    def _add_losses(self, plan: PhysicalPlan, figures: RunFigures) -> None:
        for node in everything(plan.ops):
            if isinstance(node.op, ops.Generate) and (own := figures.operators.get(node.id)) is not None:
                for way, loss in losses_of(node.op, own, plan):
                    self._add_loss(_loss_key(plan, node.id, way), loss)

    def _add_loss(self, key: str, loss: WayLoss) -> None:
        before = self.losses.pop(key, None)
        self.losses[key] = loss if before is None else before.plus(loss)
        for oldest in list(self.losses)[:-_MOST_LOSSES]:
            del self.losses[oldest]

    def _add_waits(self, plan: PhysicalPlan, figures: RunFigures) -> None:
        for model, waits in waits_of(plan, figures).items():
            self._add_times(model, self.servers.get(model, ServerTimes()).plus(figures.in_flight, waits))

    def _add_times(self, model: str, times: ServerTimes) -> None:
        self.servers.pop(model, None)
        self.servers[model] = times
        for oldest in list(self.servers)[:-_MOST_SERVERS]:
            del self.servers[oldest]

    def add_clock(self, plan: PhysicalPlan, device: str, ratio: float) -> None:
        """Adds the ratio of a run's seconds to the predicted ones: the clock becomes the geometric mean with it."""
        if self.of(plan) is not None and ratio > 0:
            self._add_clock(_key(plan), device, ratio)

    def _add_clock(self, key: str, device: str, ratio: float) -> None:
        entry = self.programs[key]
        clock = dict(entry.clock)
        before = clock.pop(device, ratio)
        clock[device] = (before * ratio) ** 0.5
        self.programs[key] = replace(entry, clock=dict(list(clock.items())[-_MOST_CLOCKS:]))

    def forget_clock(self, device: str) -> None:
        """Drops the clocks of a device, which is being measured anew."""
        for key, entry in self.programs.items():
            clock = {name: ratio for name, ratio in entry.clock.items() if name != device}
            self.programs[key] = replace(entry, clock=clock)

    def forget(self, name: str | None = None) -> int:
        """Drops the statistics of a program by its name, or of all; returns how many programs' went.

        Those of servers are of no program, and go with all.
        """
        keys = [key for key, entry in self.programs.items() if name is None or entry.name == name]
        for key in keys:
            del self.programs[key]
        self.losses = {key: loss for key, loss in self.losses.items() if name is not None and loss.program != name}
        self.servers = {} if name is None else self.servers
        return len(keys)

    def to_text(self) -> str:
        programs = {key: asdict(entry) for key, entry in self.programs.items()}
        losses = {key: asdict(loss) for key, loss in self.losses.items()}
        servers = {model: asdict(times) for model, times in self.servers.items()}
        data = {"version": VERSION, "programs": programs, "losses": losses, "servers": servers}
        return json.dumps(data, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_text(cls, source: str) -> Statistics:
        """The statistics in a text. Raises ValueError where it is damaged or of another version."""
        try:
            data = json.loads(source)
            if data["version"] != VERSION:
                raise ValueError("statistics of this version are expected")
            losses = {key: loss_from(mapping(loss)) for key, loss in mapping(data["losses"]).items()}
            servers = {model: server_times_from(times) for model, times in mapping(data["servers"]).items()}
            return cls({key: _program(entry) for key, entry in mapping(data["programs"]).items()}, losses, servers)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError("statistics are expected") from error


def fingerprint(plan: PhysicalPlan) -> str:
    """A digest of the operators that generate and that select rows. Columns that a rule may drop do not count.

    Nor does what drafts, which changes no token.
    """
    # How a plan chose to decode is no part of its program.
    return _digest(plan, plan.ways)


def _loss_key(plan: PhysicalPlan, operator: str, way: str) -> str:
    """The program is the same whether it decodes in that way, or as it would without."""
    return f"{_digest(plan, {node.id for node in everything(plan.ops)})} {operator} {way}"


def _digest(plan: PhysicalPlan, without: Container[str]) -> str:
    """Of a program; how operators with these ids decode is left out."""
    state = blake2b(digest_size=12)
    drafters = {op.draft.model for op in _generates(plan) if op.draft is not None}
    chosen = [node.op for node in everything(plan.ops) if node.id in without]
    drafters |= {op.via.model for op in chosen if isinstance(op, ops.Generate) and isinstance(op.via, ops.Filter)}
    drafters -= {op.model for op in _generates(plan)}
    models = sorted((name, id) for name, id in plan.models.items() if name not in drafters)
    state.update(repr((plan.name, models, list(_operators(plan, without)))).encode("utf-8", "replace"))
    return state.hexdigest()


def clock_key(device: Device) -> str:
    """What the speed of a run depends on besides its program and models, and whether the figures are nominal."""
    return f"{device.kind} {device.dtype} {device.threads}" + ("" if device.measured else " (nominal)")


def _operators(plan: PhysicalPlan, without: Container[str]) -> Iterator[object]:
    for node in everything(plan.ops):
        if isinstance(
            node.op,
            ops.SetContext | ops.Generate | ops.TopK | ops.Split | ops.Repeat | ops.Search | ops.Where | ops.Vote,
        ):
            op: ops.Operator = node.op
            if isinstance(op, ops.Generate) and node.id in without:
                op = replace(op, via=None)
            arguments = [(part.name, repr(getattr(op, part.name))) for part in fields(op)]
            yield type(op).__name__, [pair for pair in arguments if pair[0] not in _NOT_PRINTED]


def _generates(plan: PhysicalPlan) -> list[ops.Generate]:
    return [node.op for node in everything(plan.ops) if isinstance(node.op, ops.Generate)]


def _numbers(plan: PhysicalPlan) -> dict[str, Value]:
    """The values of numeric parameters. The value of a text does not change the amount of work."""
    numeric = {param.name for param in plan.params if param.type in ("int", "float", "bool")}
    return {name: value for name, value in plan.values().items() if name in numeric}


def _key(plan: PhysicalPlan) -> str:
    return f"{fingerprint(plan)} {json.dumps(_numbers(plan), sort_keys=True)}"


def _means(figures: OperatorFigures, problems: int, most: float | None, words: str) -> OperatorStatistics:
    return OperatorStatistics(
        figures.runs / problems,
        figures.rows_in / problems,
        figures.rows_out / problems,
        figures.prompt_tokens / problems,
        figures.cached_tokens / problems,
        figures.sampled_tokens / problems,
        {name: figures.counts[name] / problems for name in _PLAN_INDEPENDENT if name in figures.counts}
        | {name: draws / problems for name, draws in _allowed(figures.counts).items()},
        most,
        words,
    )


def _allowed(counts: Mapping[str, int]) -> dict[str, int]:
    """Draws under a mask, by the bits of the number of ids that it allowed."""
    found: dict[str, int] = {}
    for name, draws in counts.items():
        if name.startswith(_ALLOWED):
            key = f"{ALLOWED_BITS}{int(name.removeprefix(_ALLOWED)).bit_length()}"
            found[key] = found.get(key, 0) + draws
    return found


def _weighted(old: OperatorStatistics | None, new: OperatorStatistics, weight: float) -> OperatorStatistics:
    """The means of both, the new ones with this weight (0 to 1)."""
    if old is None:
        return new
    means: dict[str, Any] = {name: _weighted_mean(getattr(old, name), getattr(new, name), weight) for name in _MEANS}
    names = dict.fromkeys([*old.counts, *new.counts])
    counts = {name: _weighted_mean(old.counts.get(name), new.counts.get(name), weight) for name in names}
    return replace(new, **means, counts=counts)


def _weighted_mean(old: float | None, new: float | None, weight: float) -> float:
    """A count that only one kind of plan has (None in the others) is not diluted by the others."""
    if old is None or new is None:
        return old if new is None and old is not None else new or 0.0
    mean = old + (new - old) * weight
    # What does not come any more fades away, in the end below what is a number here.
    return mean if mean > _FADED else 0.0


def _program(data: Mapping[str, Any]) -> ProgramStatistics:
    return ProgramStatistics(
        text(data["name"]),
        {text(name): text(model) for name, model in mapping(data["models"]).items()},
        {name: _scalar(value) for name, value in mapping(data["values"]).items()},
        count(data["problems"]),
        peak(data["longest"]),
        {id: _operator(mapping(means)) for id, means in mapping(data["operators"]).items()},
        {device: number(ratio, positive=True) for device, ratio in mapping(data["clock"]).items()},
    )


def _operator(data: Mapping[str, Any]) -> OperatorStatistics:
    means = {name: number(data[name]) for name in _MEANS}
    counts = {name: number(value) for name, value in mapping(data["counts"]).items()}
    most = None if data["most"] is None else number(data["most"])
    return OperatorStatistics(**means, counts=counts, most=most, words=text(data["words"]))


def _scalar(value: Any) -> Value:
    """The value of a numeric parameter, of either sign."""
    if isinstance(value, bool):
        return value
    number(abs(value))
    return value  # type: ignore[no-any-return]
