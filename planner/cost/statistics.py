"""Statistics of earlier runs: the figures of each operator of a program for one problem, on average.

They are keyed by the program's fingerprint and the values of its numeric parameters, and kept in one file that is never
required. The file is bounded: the least recently used programs are dropped first.

What routers learned is kept apart: a state for each program, model, device and router, as plain data.

How often ways to decode that lose something changed a token, as runs saw it by shadows (`--shadow`).

A run knows of some early draws what the full model would have drawn. Its figures belong to the operator as it would be
without that way, so that a later plan that may take it finds them, whoever wrote it: a program or a planner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

from qpdsl.grammar import ast
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.run_figures import FIGURES, THOUGHT_TOKENS, OperatorFigures, RunFigures
from qpdsl.planner.cost.server_times import ServerTimes, server_times_from, waits_of
from qpdsl.planner.cost.validation import by_name, mapping, number, peak, positive, record, text
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DRAFTS, VARIANTS
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.plan.reads import value_ahead
from qpdsl.planner.rules import EFFECTS
from qpdsl.planner.values.value import Value

ROUTERS_VERSION = 1
ROUTERS_FILE = "routers.json"
MAX_STATES = 64
VERSION = 4
STATISTICS_FILE = "statistics.json"
MAX_PROGRAMS = 256
# Earlier runs count for at most this many problems, so that a change shows.
_MAX_WEIGHT = 200.0
# For how many devices a program keeps a clock.
_MAX_CLOCKS = 8
_FADED = 1e-9
_MAX_LOSSES = 1024
_MAX_SERVERS = 256
# The counts that are the same however an operator runs, or that plans of one kind alone have.
_PLAN_INDEPENDENT = (
    "going", "samples", "longest", "context", "texts", "text_tokens", "first_tokens", "new_tokens", "steps",
    "steps_known", THOUGHT_TOKENS, "would_draws", "would_rounds", "would_drafted",
    *(count for effect in EFFECTS.values() for count in effect.counts),
    *(f"{way.name}_{what}" for way in DRAFTS for what in ("drafted", "rounds", "draws", "accepted", "rejected")),
    *(count for variant in VARIANTS for count in variant.counts),
)  # fmt: skip
# Counts of draws by the ids that a mask allowed (`allowed_37`) are kept by the bits of that number.
_ALLOWED, ALLOWED_BITS = "allowed_", "ids_"


@dataclass(slots=True)
class RouterStates:
    """The states by their keys, the latest last; whether one fits a router is for that router to say."""

    states: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def put(self, key: str, state: Mapping[str, Any]) -> None:
        """Keeps a state in the place of the one with its key; the oldest go."""
        self.states.pop(key, None)
        self.states[key] = state
        for oldest in list(self.states)[:-MAX_STATES]:
            del self.states[oldest]

    def to_text(self) -> str:
        return json.dumps({"version": ROUTERS_VERSION, "states": self.states}) + "\n"

    @classmethod
    def from_text(cls, source: str) -> RouterStates:
        """The states in a text. Raises ValueError where it is damaged or of another version."""
        try:
            data = mapping(json.loads(source))
            if data["version"] != ROUTERS_VERSION:
                raise ValueError("states of this version are expected")
            return cls({text(key): mapping(state) for key, state in mapping(data["states"]).items()})
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError("states of routers are expected") from error


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """Means over problems. Inside a `repeat`, `runs` are its rounds. For `counts` see `Usage`, and for `squares`
    `OperatorFigures`.

    `most` is the planner's bound on the rows that the operator can make, `words` is the operator as people read it.
    """

    runs: float = 0.0
    rows_in: float = 0.0
    rows_out: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    sampled_tokens: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)
    squares: Mapping[str, float] = field(default_factory=dict)
    most: float | None = None
    words: str = ""

    @property
    def tokens(self) -> float:
        return self.prompt_tokens + self.sampled_tokens

    def count(self, name: str) -> float:
        return self.counts.get(name, 0.0)

    def deviation(self, mean: float, name: str) -> float | None:
        """How far problems are from their mean, as a standard deviation; None where no run told."""
        return math.sqrt(max(self.squares[name] - mean**2, 0.0)) if name in self.squares else None


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

    `losses` are those of ways to decode, by operator and way, the latest last; see `WayLoss`. `servers` holds
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
            weight = new.problems / (new.problems + min(before.problems, _MAX_WEIGHT))
            old = before.operators
            merged = {**old, **{id: _weighted(old.get(id), means, weight) for id, means in new.operators.items()}}
            self.programs[key] = replace(
                new,
                problems=new.problems + before.problems,
                longest=before.longest + (new.longest - before.longest) * weight,
                operators=merged,
                clock=before.clock,
            )
        for oldest in list(self.programs)[:-MAX_PROGRAMS]:
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
        for oldest in list(self.losses)[:-_MAX_LOSSES]:
            del self.losses[oldest]

    def _add_waits(self, plan: PhysicalPlan, figures: RunFigures) -> None:
        for model, waits in waits_of(plan, figures).items():
            self._add_times(model, self.servers.get(model, ServerTimes()).plus(figures.in_flight, waits))

    def _add_times(self, model: str, times: ServerTimes) -> None:
        self.servers.pop(model, None)
        self.servers[model] = times
        for oldest in list(self.servers)[:-_MAX_SERVERS]:
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
        self.programs[key] = replace(entry, clock=dict(list(clock.items())[-_MAX_CLOCKS:]))

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
            readers = (("programs", _program), ("losses", loss_from), ("servers", server_times_from))
            return cls(*(by_name(read)(data[name]) for name, read in readers))
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
    drafters |= {op.via.model.name for op in chosen if isinstance(op, ops.Generate) and isinstance(op.via, ops.Filter)}
    drafters -= {op.model.name for op in _generates(plan)}
    models = sorted((name, id) for name, id in plan.models.items() if name not in drafters)
    state.update(repr((plan.name, models, list(_operators(plan, without)))).encode("utf-8", "replace"))
    return state.hexdigest()


def device_key(device: Device) -> str:
    """What the speed of a run depends on besides its program and models."""
    return f"{device.kind} {device.dtype} {device.threads}"


def clock_key(device: Device) -> str:
    """The same, and whether the figures are nominal."""
    return device_key(device) + ("" if device.measured else " (nominal)")


# What the digest of a program has of an operator: its parts, by the names that they have in older statistics; of any
# other that keeps so many rows, its parts as they are declared.
_DIGESTED: Mapping[type[ops.Operator], tuple[tuple[str, str], ...]] = {
    ops.Chat: (("turns", "turns"), ("prompt", "")),
    ops.Prompt: (("turns", ""), ("prompt", "text")),
    ops.Generate: tuple(
        (name, name)
        for name in (
            *("model", "n", "temperature", "top_p", "top_k", "min_p", "stop", "max_tokens"),
            *("constraint", "via", "into", "ordinal", "like"),
        )
    ),
    ops.Keep: (("k", "count"), ("by", "by"), ("per", "per"), ("like", "like")),
    ops.Split: tuple((name, name) for name in ("count", "by", "temperature", "per")),
    ops.Repeat: (("limit", "limit"), ("until", "until"), ("gather", "gather")),
    ops.Search: tuple(
        (name, name)
        for name in (
            *("method", "by", "simulations", "c", "per_round", "turns"),
            *("rollout", "backup", "prior", "arms"),
        )
    ),
    ops.Where: (("condition", "condition"),),
    ops.Vote: tuple((name, name) for name in ("column", "weight", "equal", "decided", "per")),
}


def _operators(plan: PhysicalPlan, without: Container[str]) -> Iterator[object]:
    for node in everything(plan.ops):
        op = node.op
        digested = _DIGESTED.get(type(op))
        if digested is None and op.rows != "count":
            continue
        digested = digested or tuple((name, name) for name, _ in ast.parts(type(op)))
        if isinstance(op, ops.Generate) and node.id in without and not isinstance(op.via, ops.Contrast):
            op = replace(op, via=None)
        yield (
            op.operator,
            [
                ("stage", repr(op.stage)),
                *((name, _printed(op, own)) for name, own in digested),
            ],
        )


def _printed(op: ops.Operator, name: str) -> str:
    """A part of an operator. Columns and models are plain names in it."""
    value = getattr(op, name) if name else (() if isinstance(op, ops.Prompt) else None)
    roles = dict(ast.parts(type(op)))
    if isinstance(value, ast.ModelRef) or (
        name in roles and roles[name].kind != "value" and isinstance(value, ast.Name)
    ):
        return repr(value.name if isinstance(value, ast.ModelRef) else value.id)
    if isinstance(value, ast.Paired):
        own = ((part.name, getattr(value, part.name)) for part in fields(value) if part.repr)
        inside = (f"{key}={(one.name if isinstance(one, ast.ModelRef) else one)!r}" for key, one in own)
        return f"{type(value).__name__}({', '.join(inside)})"
    return repr(value)


def _generates(plan: PhysicalPlan) -> list[ops.Generate]:
    return [node.op for node in everything(plan.ops) if isinstance(node.op, ops.Generate)]


def _numbers(plan: PhysicalPlan) -> dict[str, Value]:
    """The values of numeric parameters. The value of a text does not change the amount of work."""
    numeric = {param.name for param in plan.params if param.type in ("int", "float", "bool")}
    return {name: value for name, value in plan.values().items() if name in numeric}


def _key(plan: PhysicalPlan) -> str:
    return f"{fingerprint(plan)} {json.dumps(_numbers(plan), sort_keys=True)}"


def _means(figures: OperatorFigures, problems: int, most: float | None, words: str) -> OperatorStatistics:
    counts = {name: figures.counts[name] for name in _PLAN_INDEPENDENT if name in figures.counts}
    counts |= _allowed(figures.counts)
    means: dict[str, Any] = {name: getattr(figures, name) / problems for name in FIGURES}
    counted, squared = ({name: value / problems for name, value in sums.items()} for sums in (counts, figures.squares))
    return OperatorStatistics(**means, counts=counted, squares=squared, most=most, words=words)


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
    means: dict[str, Any] = {name: _weighted_mean(getattr(old, name), getattr(new, name), weight) for name in FIGURES}
    counts, squares = (
        {name: _weighted_mean(before.get(name), after.get(name), weight) for name in dict.fromkeys([*before, *after])}
        for before, after in ((old.counts, new.counts), (old.squares, new.squares))
    )
    return replace(new, **means, counts=counts, squares=squares)


def _weighted_mean(old: float | None, new: float | None, weight: float) -> float:
    """A count that only one kind of plan has (None in the others) is not diluted by the others."""
    if old is None or new is None:
        return old if new is None and old is not None else new or 0.0
    mean = old + (new - old) * weight
    # What does not come any more fades away, in the end below what is a number here.
    return mean if mean > _FADED else 0.0


def _program(data: Any) -> ProgramStatistics:
    each = {"models": text, "values": _scalar, "operators": _operator, "clock": positive}
    read: dict[str, Any] = {name: by_name(read) for name, read in each.items()}
    return record(ProgramStatistics, data, longest=peak, **read)


def _operator(data: Any) -> OperatorStatistics:
    return record(OperatorStatistics, data, absent=("squares",), counts=by_name(number), squares=by_name(number))


def _scalar(value: Any) -> Value:
    """The value of a numeric parameter, of either sign."""
    if isinstance(value, bool):
        return value
    number(abs(value))
    return value  # type: ignore[no-any-return]


# Two-sided, 95%.
_NORMAL = 1.959964


def wilson(hits: float, draws: float) -> tuple[float, float]:
    """The interval that holds a share with 95% confidence, where `hits` of `draws` were seen (Wilson, 1927)."""
    if not draws:
        return 0.0, 1.0
    share, square = hits / draws, _NORMAL**2
    middle = share + square / (2 * draws)
    width = _NORMAL * math.sqrt(max(share * (1 - share) / draws + square / (4 * draws**2), 0.0))
    least, most = ((middle + sign * width) / (1 + square / draws) for sign in (-1, 1))
    return max(least, 0.0), min(most, 1.0)


def shadow_words(shadowed: float, differed: float) -> str:
    """How often the full model would have drawn another token, for people."""
    least, most = wilson(differed, shadowed)
    share = f"{differed / shadowed:.1%} ({least * 100:.1f} to {most:.1%}, 95% Wilson)"
    draws = "draw" if shadowed == 1 else "draws"
    return f"shadowed {shadowed:,.0f} early {draws}: {differed:,.0f} would differ, {share}"


def seen(changed: float, draws: float) -> float:
    """The share of draws that is counted as changed: one more than was seen."""
    return min((changed + 1) / (draws + 1), 1.0)


@dataclass(frozen=True, slots=True)
class WayLoss:
    """Of all `draws` of an operator `early` ones were decided in that way; of `shadowed` ones of these `differed`.

    `program` is the program's name.
    """

    program: str
    draws: float
    early: float
    shadowed: float
    differed: float

    @property
    def share(self) -> float:
        """The part of all draws that is decided in that way."""
        return self.early / self.draws

    def loss(self) -> float:
        """The share of all draws that is counted as changed."""
        return self.share * seen(self.differed, self.shadowed)

    def bounds(self) -> tuple[float, float]:
        """Where the share of draws that change lies, with 95% confidence."""
        least, most = wilson(self.differed, self.shadowed)
        return self.share * least, self.share * most

    def plus(self, other: WayLoss) -> WayLoss:
        """Both together."""
        return WayLoss(
            self.program,
            self.draws + other.draws,
            self.early + other.early,
            self.shadowed + other.shadowed,
            self.differed + other.differed,
        )


def way_key(via: ops.Via, plan: PhysicalPlan, threshold: float | None = None) -> str | None:
    """Names a way to decode, by what its clause comes to; None for a filter whose threshold moves or differs.

    None too for a contrast, which is what a program asks for, and no way to come to it.

    `threshold`: that of a filter, in the place of its own. The small model is named by its id.
    """
    values = plan.values()

    def number(expr: ast.Expr | None) -> str:
        value = value_ahead(expr, values)
        return f"{float(value):g}" if isinstance(value, int | float) else "-"

    if isinstance(via, ops.Amortized):
        numbers = (number(expr) for expr in (via.margin, via.layer, via.rerank, via.certify))
        return f"{via.word} {' '.join(numbers)} {via.head or '-'}"
    if isinstance(via, ops.Contrast) or value_ahead(via.threshold, values) is None:
        return None
    kept = number(via.threshold) if threshold is None else f"{threshold:g}"
    return f"{via.word} {plan.models.get(via.model.name, via.model.name)} {via.by} {kept}"


def losses_of(op: ops.Generate, figures: OperatorFigures, plan: PhysicalPlan) -> Iterator[tuple[str, WayLoss]]:
    """What a run saw of an operator's way, and with a filter of its larger thresholds, by their keys."""
    shadowed, via = figures.count("shadowed"), op.via
    if not shadowed or via is None or (key := way_key(via, plan)) is None:
        return
    if isinstance(via, ops.Amortized):
        exits, refined = figures.count("exits"), figures.count("refined")
        early = exits if via.rerank is None else exits + refined
        draws = exits + refined + figures.count("full")
    else:
        early = figures.count("filter_sure")
        draws = early + figures.count("large_draws")
    yield key, WayLoss(plan.name, draws, early, shadowed, figures.count("differed"))
    for least in ops.THRESHOLDS if isinstance(via, ops.Filter) else ():
        above, other = figures.count(f"shadowed_{least}"), way_key(via, plan, least)
        if above and other is not None and other != key:
            # Of the draws that nobody looked at as many are so sure.
            sure = early * above / shadowed
            yield other, WayLoss(plan.name, draws, sure, above, figures.count(f"differed_{least}"))


def loss_from(data: Any) -> WayLoss:
    """A loss from plain data. Raises KeyError and ValueError."""
    loss = record(WayLoss, data)
    if not loss.differed <= loss.shadowed <= loss.early * (1 + 1e-9) <= loss.draws * (1 + 2e-9) or not loss.shadowed:
        raise ValueError("counts of draws are expected")
    return loss
