"""What happens in a run, as small frozen events that every reader sees, from the progress bar to a trace.

Event
├── ProcessStarted, Preparing                           what a process is, and what it does before rows can run
├── RunStarted, InputListed, RunSaved,                  the run as a whole; kept for readers that come late
│   ModelsLoaded, RunEnded
├── Estimated                                           what the run was expected to take
├── InstanceStarted, WayTried, InstanceDone, RowDone    one row of the input
├── OperatorDone, ToolCalled, Routed, EngineStepped     one operator, one call, one choice of a router, one forward
├── ServerReported, ReplicaGone                         how a model on a server stands; a replica that is there no more
├── CellReached, RequestReached                         one cell of a sweep, one request to a server, as it stands now
├── Earlier, Lost                                       what a reader that came late, or was slow, did not see
└── Detail                                              heavy: emitted only while a reader wants details
    ├── OperatorStarted
    ├── Expanded, Valued, Compared, Selected, GivenUp   the candidates of one row, as a tree by their paths
    └── Answered                                        which of them the row's answer was read from

The names of these classes and of their fields are part of the trace format, and `codec.py` reads the annotations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from qpdsl.executor.engine.step_report import StepReport

# The round of each loop around an operator, from the outermost in.
Rounds = tuple[int, ...]
# The indices that a row took through the fan-outs: its parent's path and one index more.
Path = tuple[int, ...]
# Operators that run others beside the rows, from the outermost in: each is its id and what tells its runs apart.
Aside = tuple[str, ...]
# Of an impossible token it is -inf, and of logits that are no numbers nan.
LogProb = float
Status = Literal["done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`at`: seconds on the monotonic clock; in a trace, since the run's stream began."""

    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Event):
    """A process that can be watched began: `command` is `run`, `eval` or `serve`, and `programs` are what it runs.

    `place` names the cluster that runs the rows, empty for this process; `wall` is Unix time.
    """

    command: str
    programs: tuple[str, ...]
    pid: int
    wall: float
    version: str
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing(Event):
    """What the process does from now on, before its rows can run, in a few words."""

    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """`plan` is the physical plan as `explain --format json` gives it; `rows` counts the input; `wall` is Unix time.

    `grader` is its grader as a saved run names it, `input` the name of its data; each is empty where it has none.
    Of servers it takes `max_tokens` and `max_cost` at the most, None for any. `rules`: see
    `rule_record` of the planner.
    """

    program: str
    plan: Mapping[str, Any]
    rows: int
    seed: int
    device: str
    concurrency: int
    pid: int
    wall: float
    version: str
    max_tokens: int | None = None
    max_cost: float | None = None
    rules: Mapping[str, Any] = field(default_factory=dict)
    grader: str = ""
    input: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputListed(Event):
    """The first rows of the input: ids, questions (shortened) and the right answers, None where not known."""

    ids: tuple[str, ...]
    asked: tuple[str, ...]
    references: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSaved(Event):
    """The rows of the run are saved, in the run of this name.

    `replayed` rows were run again later: what they took of engines and operators is not what the run took.
    """

    run: str
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsLoaded(Event):
    """The models of the run are ready."""

    models: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEstimate:
    """What an operator was expected to take for one row of the input, over the rounds of the loops around it.

    It makes `rows`. Tokens and `seconds` are None where it asks no model, and `seconds` too where its server was not
    measured. `rounds` are those of a loop. Rows of the input differ in their rows by `rows_deviation` and in their
    tokens of both kinds by `tokens_deviation`, as a standard deviation; None where no earlier run told.
    """

    rows: float
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    sampled_tokens: float | None = None
    seconds: float | None = None
    rounds: float | None = None
    rows_deviation: float | None = None
    tokens_deviation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated(Event):
    """What the run was expected to take before it began, as `explain --analyze` sets it beside what it took.

    `seconds` are those of the whole run, None where a server was not measured, with `in_flight` rows at once;
    `kv_bytes` those of keys and values. `source` says in words what rows and tokens are based on: where that is this
    very program, on `seen` rows of earlier inputs. Seconds were multiplied by `clock`, as earlier runs took, None where
    there were none; `device` says where the figures of the device come from.
    """

    operators: Mapping[str, OperatorEstimate]
    seconds: float | None
    in_flight: float
    kv_bytes: float
    source: str
    device: str
    clock: float | None = None
    seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """`error` says why a run failed as a whole."""

    status: Status
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStarted(Event):
    """A row of the input began to run; `baseline` marks greedy decoding, run beside the program for comparison."""

    instance: str
    baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WayTried(Event):
    """A row of a program under a budget was tried by one of its ways, which took these tokens and seconds.

    `support` is how sure the way was of its answer, None where nothing says so. The policy then had the row tried by
    `next`, None where it ended there.
    """

    instance: str
    way: str
    support: float | None
    next: str | None
    prompt_tokens: int
    sampled_tokens: int
    seconds: float


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


# Between the name of a model and that of the replica that steps it, in the reports of a run over several.
REPLICA_SIGN = " @ "


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """An engine's report of a step as it is read back from a trace, by a process that loads no engine.

    It has the figures that every report has, and in `others` whatever else the engine counted, by name. The waits for
    tokens that the step ended are counted by bucket (see `latencies.py`).
    """

    model: str
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    pages_held: int
    pages: int
    preemptions: int
    others: Mapping[str, float] = field(default_factory=dict)
    first_waits: Mapping[int, int] = field(default_factory=dict)
    waits: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStepped(Event):
    """One forward of one model. A run emits the engine's own report; an event read from a trace has its figures."""

    report: StepReport | EngineFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(Event):
    """A tool gave a value in `seconds`, or `failed`; where it was not `made`, what it gave before was known."""

    instance: str
    operator: str
    tool: str
    seconds: float
    made: bool = True
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReported(Event):
    """How a model on a server stands, a few times a second while that changes.

    `in_flight` of its requests are there, which gets `limit` at once for all its models, and `queued` wait for their
    turn. `again` of the queued were sent before: `why` says what became of the latest of these, None where there are
    none. The server has failed all requests for `failing` seconds, 0 where it answered one since; one is sent again in
    `resumes` seconds. It has had requests and given no token for `quiet` seconds, 0 for a few.

    So far, of what was asked and of what was given up: `requests` sent, `retries` of them again, `replayed` ones whose
    answer was kept; tokens as the server counted them, `prompt_tokens` None where it does not say; `cost` in the
    currency of the price table.
    """

    model: str
    in_flight: int
    limit: int
    queued: int
    requests: int
    retries: int
    replayed: int
    sampled_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    cost: float = 0.0
    again: int = 0
    why: str | None = None
    failing: float = 0.0
    resumes: float = 0.0
    quiet: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDone(Event):
    """A row of the input ended; `error` says why it failed, or with `unanswered` why it came to no answer.

    `path` is that of the row that gave the answer. The program wanted it to end in `deadline` seconds, None where it
    says nothing of that.
    """

    instance: str
    prompt_tokens: int
    sampled_tokens: int
    seconds: float
    error: str | None
    answer: str | None = None
    score: float | None = None
    path: Path = ()
    baseline: bool = False
    unanswered: bool = False
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDone(Event):
    """The result of a row of the input, and of greedy decoding where that was run for comparison.

    `correct` and `greedy_correct` are None where there is no reference. `error` says why it failed, `unanswered` why it
    has no answer and is wrong.
    """

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
    unanswered: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellReached(Event):
    """How far a cell of a sweep is: `done` of its `rows` have ended, and `running` ones are at work.

    Of those that have ended `right` of `judged` are, and `failed` of them count as wrong. `sampled_tokens` include
    `shared_tokens`, which another cell had drawn. `left` is how many seconds the whole sweep still takes, None where
    nothing is known yet.
    """

    cell: str
    rows: int
    done: int
    running: int = 0
    failed: int = 0
    right: int = 0
    judged: int = 0
    sampled_tokens: int = 0
    shared_tokens: int = 0
    left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReached(Event):
    """How far a request to a server is: it waits, runs, or has ended as `status` says, `seconds` after it arrived."""

    request: str
    program: str
    status: str
    seconds: float = 0.0
    prompt_tokens: int = 0
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier(Event):
    """Sums over the events that the history of a late reader no longer holds.

    `operators`: id → (runs, rows in, rows out, prompt, sampled and cached tokens, seconds), and `counts`: id → those of
    `OperatorDone`; `models`: name → (steps, prefill and decode tokens, seconds); `rows` counts those done.
    """

    events: int
    operators: Mapping[str, tuple[float, ...]]
    rows: int
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    models: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGone(Event):
    """A replica of a cluster was lost, or had nothing to do, and `why` in words."""

    replica: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """A reader could not keep up; `count` events were left out for it."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail(Event):
    """Something about the candidates of one instance, after one run of one operator.

    `aside`: what rows come to in a `peek`, an `ask`, a `call` or one of several ways, which they then go on without. A
    candidate is known by that and its path together: the rows that go on take the same paths.
    """

    instance: str
    operator: str
    rounds: Rounds = ()
    aside: Aside = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStarted(Detail):
    """An operator began on that many rows."""

    rows_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """A row that was made: its path (its parent's and one index more), the text of its step, and why that ended.

    One without a `finish` is a copy of its parent, and has written nothing.

    `logprob` is the whole row's. `pieces` are the step's tokens as text and `logprobs` theirs, each empty where they
    are not at hand. Of the `tokens` so many were drawn for a `thought`, which stands before the step; None where the
    step is a part of it, or nothing was thought. `written` has the places of pieces that were no draws of the
    operator's model alone, by what wrote them (see `Writer`): `forced`, `drafted`, `early` or `small`.
    """

    path: Path
    step: str = ""
    finish: str | None = None
    finished: bool = False
    logprob: LogProb = 0.0
    tokens: int = 0
    pieces: tuple[str, ...] = ()
    logprobs: tuple[LogProb, ...] = ()
    thought: str | None = None
    thought_tokens: int = 0
    written: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded(Detail):
    """Rows were made from rows."""

    candidates: tuple[CandidateRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Valued(Detail):
    """A column was set: to scores where `scores` is true, else to values that were read out of the text."""

    column: str
    paths: tuple[Path, ...]
    values: tuple[str | float | bool | None, ...]
    scores: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Detail):
    """Matches between rows, and the chance of the first of each pair to win."""

    firsts: tuple[Path, ...]
    seconds: tuple[Path, ...]
    chances: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected(Detail):
    """Which of an operator's rows were kept, in their new order, and which were dropped.

    Rows of a `group` stand against each other alone, and each group is an event. `keys` are those of the rows that were
    kept, then of the others: what they were ordered by or told apart by, the answers of a vote. There are none where
    each row was decided about by itself. `weights` are those of a vote's rows, None for a row that was not counted;
    where copies are shared out, each row's share of those of its group, None for one that goes on as it is.
    """

    kept: tuple[Path, ...]
    dropped: tuple[Path, ...]
    group: str | None = None
    keys: tuple[str | float | bool | None, ...] = ()
    weights: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(Detail):
    """Samples that were not waited for, as what follows was decided without them."""

    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Detail):
    """The candidate that the answer of the row was read from."""

    path: Path
