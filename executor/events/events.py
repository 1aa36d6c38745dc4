"""What happens in a run, as small frozen events. Every reader, from the progress bar to a trace, sees these.

Event
├── RunStarted, InputListed, ModelsLoaded, RunEnded     the run as a whole; kept for whoever comes late
├── InstanceStarted, InstanceDone, RowDone              one row of the input
├── OperatorDone, Routed, EngineStepped                 one operator, one choice of a router, one forward
├── Earlier, Lost                                       what a reader that came late, or was slow, did not see
└── Detail                                              heavy: emitted only while somebody reads details
    ├── OperatorStarted
    └── Expanded, Valued, Selected                      the candidates of one row, as a tree by their paths

MERGED: The engine's report of a step as it is read back from a trace, by a process that loads no engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Literal as OneOf

if TYPE_CHECKING:
    from qpdsl.executor.engine.report import StepReport


Rounds = tuple[int, ...]
Path = tuple[int, ...]

Status = OneOf["done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`at`: seconds on the monotonic clock; in a trace, since the run's stream began."""

    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """`plan` is the physical plan as `explain --format json` gives it; `rows` counts the input; `wall` is Unix time."""

    program: str
    plan: Mapping[str, Any]
    rows: int
    seed: int
    device: str
    concurrency: int
    pid: int
    wall: float
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputListed(Event):
    """The first rows of the input: ids, what each asks (shortened) and the right answers, None where not known."""

    ids: tuple[str, ...]
    asked: tuple[str, ...]
    references: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsLoaded(Event):
    """The models of the run are ready."""

    models: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """`error` says why a run failed as a whole."""

    status: Status
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStarted(Event):
    """A row of the input began to run; `baseline` marks greedy decoding, run beside the program to compare with."""

    instance: str
    baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDone(Event):
    """One run of one operator: rows in and out, tokens it submitted and sampled, and how long it waited for them.

    `cached_tokens`, `counts`: see `Usage`; `rounds` are those of the loops around it.
    """

    instance: str
    operator: str
    rows_in: int
    rows_out: int
    prompt_tokens: int
    sampled_tokens: int
    seconds: float
    cached_tokens: int = 0
    rounds: Rounds = ()
    baseline: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed(Event):
    """A router chose how an operator runs; `regret` is its estimate of what a better choice would have saved."""

    operator: str
    choice: str
    regret: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStepped(Event):
    """One forward of one model. A run emits the engine's own report; one that was read back has its figures."""

    report: StepReport | EngineFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDone(Event):
    """A row of the input ended; `error` says why where it failed. `path` is that of the row answered with."""

    instance: str
    prompt_tokens: int
    sampled_tokens: int
    seconds: float
    error: str | None
    answer: str | None = None
    score: float | None = None
    path: Path = ()
    baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDone(Event):
    """What a row of the input came to, beside greedy decoding where that was run; None where there is no reference."""

    row: str
    answer: str
    score: float | None
    prompt_tokens: int
    sampled_tokens: int
    seconds: float
    reference: str | None = None
    correct: bool | None = None
    greedy: str | None = None
    greedy_correct: bool | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier(Event):
    """Sums over the events that a late reader's history no longer holds.

    `operators`: id → (runs, rows in, rows out, prompt, sampled and cached tokens, seconds); `rows` counts those done.
    """

    events: int
    operators: Mapping[str, tuple[float, ...]]
    rows: int
    prefill_tokens: int
    decode_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """A reader could not keep up; this many events were left out for it."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail(Event):
    """Something about the candidates of one instance, after one run of one operator."""

    instance: str
    operator: str
    rounds: Rounds = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStarted(Detail):
    """An operator began on that many rows."""

    rows_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that was made: its path (its parent's and one index more), what was written, and why that ended.

    `logprob` is the whole row's. `pieces` are the step's tokens as text and `logprobs` theirs, both empty where they
    are not at hand. `ahead` marks a row made before it was known whether its parent is kept.
    """

    path: Path
    step: str = ""
    finish: str | None = None
    finished: bool = False
    logprob: float = 0.0
    tokens: int = 0
    pieces: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded(Detail):
    """Rows were made out of rows."""

    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Valued(Detail):
    """A column was set: a score where `scores` is true, else something that was read out of the text."""

    column: str
    paths: tuple[Path, ...]
    values: tuple[str | float | bool | None, ...]
    scores: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected(Detail):
    """Of the rows that came in these were kept, in this order, and those were dropped."""

    kept: tuple[Path, ...]
    dropped: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The figures that every report has, and in `others` whatever else the engine counted, by name."""

    model: str
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    pages_held: int
    pages: int
    preemptions: int
    others: Mapping[str, float] = field(default_factory=dict)
