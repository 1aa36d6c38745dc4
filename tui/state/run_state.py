"""A run as the sum of its events: `RunState` takes them one by one and answers the screens' questions."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qpdsl.executor.events import events
from qpdsl.executor.events.events import REPLICA_SIGN, EngineFigures, Event, Rounds
from qpdsl.tui.state.engine import ModelState
from qpdsl.tui.state.plan import OperatorTotals, PlanTree, ToolTotals
from qpdsl.tui.state.search import LostAnswer, SearchTree, lost_answer
from qpdsl.tui.state.server import ServerState
from qpdsl.tui.state.time_spent import Shortage, Spent, TimeSpent
from qpdsl.tui.state.verifier import GradedAnswer, graded_answers

Status = Literal["waiting", "running", "done", "right", "wrong", "failed"]
# In the order in which somebody would look at them.
STATUSES: tuple[Status, ...] = ("failed", "running", "wrong", "right", "done", "waiting")
# What is summed up of an operator beside its runs, in the order in which `Earlier` has it.
_SUMS = ("rows_in", "rows_out", "prompt_tokens", "sampled_tokens", "cached_tokens", "seconds")
# Trees are the only part that grows with the tokens of a run.
_TREES = 2000
# So many rows say how long the others take.
_ENOUGH = 3
# Requests of a server that are kept, the latest.
_REQUESTS = 5000
# Seconds without a step after which a model without requests has ended its last one.
_REST = 1.0
# Seconds that count as now.
NOW = 10.0
# So far the middle 95% of a normal distribution reach, in standard deviations.
_WIDE = 1.96
# What differs between reasons that are the same: numbers, and what is quoted of a row.
_PARTICULARS = re.compile(r'"(?:[^"\\]|\\.)*"?|\d[\d,.]*')


@dataclass(frozen=True, slots=True)
class Inside:
    """An operator that a row is in, `since` when, and the rounds of the loops around it."""

    operator: str
    rounds: Rounds
    since: float


@dataclass(slots=True)
class FailureGroup:
    """Rows that failed in one operator for one reason, but for what is their own.

    `operator` is None where nobody saw it.
    """

    operator: str | None
    reason: str
    rows: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RowState:
    """One row. `number` counts from 1 in the order of the input; times are those of the run's clock.

    `inside` are the operators that it is in, from the outermost in; `failed_in` is the one in which it failed, as far
    as somebody saw it. `counts` are those of its operators. `tried` are the ways by which a program under a budget
    tried it, in their order.
    """

    id: str
    number: int
    asked: str = ""
    reference: str | None = None
    started: float | None = None
    ended: float | None = None
    answer: str | None = None
    score: float | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float | None = None
    correct: bool | None = None
    greedy: str | None = None
    greedy_correct: bool | None = None
    error: str | None = None
    unanswered: str | None = None
    tried: list[events.WayTried] = field(default_factory=list)
    lost: LostAnswer | None = None
    graded: tuple[GradedAnswer, ...] = ()
    inside: list[Inside] = field(default_factory=list)
    failed_in: str | None = None
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def status(self) -> Status:
        if self.error is not None:
            return "failed"
        if self.ended is not None:
            return "done" if self.correct is None else "right" if self.correct else "wrong"
        return "waiting" if self.started is None else "running"

    @property
    def why(self) -> str | None:
        """Why it failed, or has no answer; None where it has one."""
        return self.error or self.unanswered

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens

    @property
    def doing(self) -> Inside | None:
        """The innermost operator that it is in."""
        return self.inside[-1] if self.inside else None


@dataclass(slots=True)
class RequestState:
    """One request to a server. `arrived` and `ended` are on its clock; `status` is its latest."""

    id: str
    program: str
    arrived: float
    status: str = "waiting"
    ended: float | None = None
    seconds: float = 0.0
    prompt_tokens: int = 0
    sampled_tokens: int = 0

    def reached(self, event: events.RequestReached) -> None:
        self.status, self.seconds = event.status, event.seconds
        self.prompt_tokens, self.sampled_tokens = event.prompt_tokens, event.sampled_tokens
        if event.status not in ("waiting", "running"):
            self.ended = event.at


class RunState:
    """A run, a sweep or a server; `cells` and `requests` are those of the latter two.

    `now` is the time of the latest event, or of whoever watches a process; `changes` counts events, so that a screen
    knows whether to draw again.

    `started` and `running` count rows. `trees` are those of the latest instances; `latest` is the one with the
    latest news of candidates. `scorers` are the operators that set columns of scores, by these.
    `replayed`: see `RunSaved`. `gone` says of replicas that are there no more why.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.changes = 0
        self.process: events.ProcessStarted | None = None
        self.step: str | None = None
        self.cells: dict[str, events.CellReached] = {}
        self.sweep_ends: float | None = None
        self.requests: dict[str, RequestState] = {}
        self.plan: PlanTree | None = None
        self.begun: events.RunStarted | None = None
        self.ended: events.RunEnded | None = None
        self.loaded: events.ModelsLoaded | None = None
        self.estimate: events.Estimated | None = None
        self.operators: defaultdict[str, OperatorTotals] = defaultdict(OperatorTotals)
        self.rows: dict[str, RowState] = {}
        self.models: dict[str, ModelState] = {}
        self.servers: dict[str, ServerState] = {}
        self.gone: dict[str, str] = {}
        self.trees: dict[str, SearchTree] = {}
        self.time = TimeSpent()
        self.scorers: dict[str, str] = {}
        self.latest: str | None = None
        self.lost = 0
        self.missed_rows = self.missed_events = 0
        self._missed_steps: dict[str, tuple[float, ...]] = {}
        self.done = self.failed = self.unanswered = self.late = 0
        self.right = self.judged = self.greedy_judged = self.greedy_right = 0
        self.running = self.started = 0
        self.saved: str | None = None
        self.replayed = False
        self.spent: Counter[str] = Counter()
        self._seconds = self._squares = 0.0

    def add(self, event: Event) -> None:
        self.now = max(self.now, event.at)
        self.changes += 1
        take = _TAKES.get(type(event))
        if take is not None:
            take(self, event)

    @property
    def phase(self) -> str:
        """The phase of the run, as one word."""
        if self.ended is not None:
            return self.ended.status
        if self.loaded is not None:
            return "running"
        return "waiting" if self.begun is None and self.process is None else "preparing"

    @property
    def command(self) -> str:
        """What the process does: `run`, `eval` or `serve`."""
        return "run" if self.process is None else self.process.command

    @property
    def total(self) -> int:
        return max(self.begun.rows if self.begun else 0, len(self.rows))

    def rate(self) -> float:
        """Tokens a second that all models sampled in the last seconds; those of servers count once they are there."""
        series = [*(one.series for one in self.models.values()), *(one.series for one in self.servers.values())]
        return sum(one.rate(self.now, "decode") for one in series)

    def why_gone(self, model: str) -> str | None:
        """Why the replica of a model is there no more; None where it is, or is none."""
        return self.gone.get(model.partition(REPLICA_SIGN)[2])

    def rests(self, model: ModelState) -> bool:
        """Whether a model of a server has nothing to do: its last report then tells of what was."""
        running = any(request.status == "running" for request in self.requests.values())
        return self.command == "serve" and not running and self.now - model.stepped > _REST

    def left(self, now: float) -> float | None:
        """Seconds until all rows are done, by what those took that are; None where that is not known."""
        if self.command == "eval":
            return None if self.sweep_ends is None else max(self.sweep_ends - now, 0.0)
        if self.loaded is None or self.done < _ENOUGH:
            return None
        return (now - self.loaded.at) / self.done * (self.total - self.done)

    def left_between(self, now: float) -> tuple[float, float] | None:
        """The seconds between which `left` lies with a probability of 95%, by how much rows differ in theirs."""
        left, rest = self.left(now), self.total - self.done
        if left is None or self.command != "run" or rest <= 0 or not self._seconds:
            return None
        mean = self._seconds / self.done
        variance = max(self._squares / self.done - mean**2, 0.0) * self.done / (self.done - 1)
        off = _WIDE * math.sqrt(variance * (1 / self.done + 1 / rest)) / mean
        return left * max(1 - off, 0.0), left * (1 + off)

    @property
    def at_work(self) -> list[RowState]:
        """The rows that run, the longest first."""
        rows = (row for row in self.rows.values() if row.status == "running")
        return sorted(rows, key=lambda row: row.started or 0.0)

    @property
    def hottest(self) -> str | None:
        """The operator in which rows spent the most time of the last seconds; of a run that has ended, of all."""
        if self.plan is None:
            return None
        first = -math.inf if self.ended is not None else self.now - NOW
        seconds = {
            line.id: self.operators[line.id].series.since(first, "seconds")
            for line in self.plan.lines
            if line.id in self.operators and not line.holds
        }
        for row in self.rows.values() if self.ended is None else ():
            if (inside := row.doing) is not None and inside.operator in seconds:
                seconds[inside.operator] += self.now - max(inside.since, first)
        most = max(seconds, key=seconds.__getitem__, default=None)
        return most if most is not None and seconds[most] > 0 else None

    @property
    def failures(self) -> list[FailureGroup]:
        """The rows that failed or came to no answer, by operator and reason: the most first."""
        groups: dict[tuple[str | None, str], FailureGroup] = {}
        for row in self.rows.values():
            if row.why is not None:
                key = row.failed_in, _PARTICULARS.sub("0", row.why)
                groups.setdefault(key, FailureGroup(row.failed_in, row.why)).rows.append(row.id)
        return sorted(groups.values(), key=lambda group: -len(group.rows))

    @property
    def cost(self) -> float:
        """What servers took so far."""
        return sum(server.latest.cost for server in self.servers.values())

    @property
    def time_shares(self) -> Mapping[Spent, float]:
        """What the time since the models were loaded went into; nothing where replicas do not tell it."""
        if any(REPLICA_SIGN in name for name in self.models) or not (self.models or self.servers):
            return {}
        return self.time.shares(self.now if self.ended is None else self.ended.at, self.running)

    @property
    def shortage(self) -> Shortage | None:
        """The want of memory of all models; None where there was none."""
        needs = [model.need for model in self.models.values() if model.need.gave_way]
        if not needs:
            return None
        more = [need.more for need in needs if need.more is not None]
        return Shortage(sum(need.gave_way for need in needs), sum(more) if more else None)

    def totals(self, operator: str) -> OperatorTotals:
        return self.operators[operator]

    def row(self, id_: str) -> RowState:
        row = self.rows.get(id_)
        if row is None:
            row = self.rows[id_] = RowState(id_, len(self.rows) + 1)
        return row

    def tree(self, instance: str) -> SearchTree:
        tree = self.trees.get(instance)
        if tree is None:
            if len(self.trees) == _TREES:
                self.trees.pop(next(iter(self.trees)))
            tree = self.trees[instance] = SearchTree()
        self.latest = instance
        return tree

    def _process_started(self, event: events.ProcessStarted) -> None:
        self.process = event

    def _preparing(self, event: events.Preparing) -> None:
        self.step = event.step

    def _cell_reached(self, event: events.CellReached) -> None:
        self.cells[event.cell] = event
        self.sweep_ends = None if event.left is None else event.at + event.left

    def _request_reached(self, event: events.RequestReached) -> None:
        request = self.requests.get(event.request)
        if request is None:
            if len(self.requests) == _REQUESTS:
                self.requests.pop(next(iter(self.requests)))
            request = self.requests[event.request] = RequestState(event.request, event.program, event.at)
        request.reached(event)

    def _run_started(self, event: events.RunStarted) -> None:
        self.begun = event
        self.plan = PlanTree.of(event.plan)

    def _input_listed(self, event: events.InputListed) -> None:
        for id_, asked, reference in zip(event.ids, event.asked, event.references, strict=False):
            row = self.row(id_)
            row.asked, row.reference = asked, reference

    def _run_saved(self, event: events.RunSaved) -> None:
        self.saved, self.replayed = event.run, event.replayed

    def _models_loaded(self, event: events.ModelsLoaded) -> None:
        self.loaded = event
        self.time.begin(event.at)

    def _estimated(self, event: events.Estimated) -> None:
        self.estimate = event

    def _run_ended(self, event: events.RunEnded) -> None:
        self.ended = event
        for totals in self.operators.values():
            totals.now = 0

    def _instance_started(self, event: events.InstanceStarted) -> None:
        if not event.baseline and self.command == "run":
            # A row that is run again is searched from the beginning.
            self.trees.pop(event.instance, None)
            row = self.row(event.instance)
            row.started, row.failed_in, row.tried = event.at, None, []
            row.counts.clear()
            self.running += 1
            self.started += 1

    def _way_tried(self, event: events.WayTried) -> None:
        if self.command == "run":
            self.row(event.instance).tried.append(event)

    def _instance_done(self, event: events.InstanceDone) -> None:
        if event.baseline or self.command != "run":
            return
        row = self.row(event.instance)
        self.running -= row.started is not None
        row.prompt_tokens, row.sampled_tokens = event.prompt_tokens, event.sampled_tokens
        row.seconds, row.score = event.seconds, event.score
        self.late += event.deadline is not None and event.seconds > event.deadline
        row.error, row.unanswered = (None, event.error) if event.unanswered else (event.error, None)
        row.answer, row.ended = event.answer, event.at
        if row.why is not None and row.doing is not None:
            row.failed_in = row.doing.operator
        for inside in row.inside:
            self.totals(inside.operator).now -= 1
        row.inside.clear()
        self._seconds += event.seconds
        self._squares += event.seconds**2
        tree = self.trees.get(event.instance)
        if tree is not None:
            tree.ended = "done" if row.error is None else "failed"
            if event.error is not None:
                tree.unanswered()
            elif not tree.is_answered and event.path:
                tree.answered(event.path)
            self.spent.update(tree.spent)

    def _row_done(self, event: events.RowDone) -> None:
        row = self.row(event.row)
        row.answer, row.score, row.seconds = event.answer, event.score, event.seconds
        row.error, row.unanswered = event.error, event.unanswered
        row.prompt_tokens, row.sampled_tokens = event.prompt_tokens, event.sampled_tokens
        row.reference = row.reference if event.reference is None else event.reference
        row.correct, row.greedy, row.greedy_correct = event.correct, event.greedy, event.greedy_correct
        row.ended = event.at if row.ended is None else row.ended
        tree = self.trees.get(event.row)
        if event.correct is not None and row.reference is not None and tree is not None:
            row.graded = graded_answers(row.id, tree, row.reference, row.answer)
            row.lost = lost_answer(tree, row.reference, row.answer) if not event.correct else None
        self.done += 1
        self.failed += event.error is not None
        self.unanswered += event.unanswered is not None
        self.judged += event.correct is not None
        self.right += event.correct is True
        self.greedy_judged += event.greedy_correct is not None
        self.greedy_right += event.greedy_correct is True

    def _operator_started(self, event: events.OperatorStarted) -> None:
        if self.command != "run":
            return
        self.totals(event.operator).now += 1
        self.row(event.instance).inside.append(Inside(event.operator, event.rounds, event.at))

    def _operator_done(self, event: events.OperatorDone) -> None:
        if event.baseline:
            return
        totals = self.totals(event.operator)
        totals.runs += 1
        for name in _SUMS:
            setattr(totals, name, getattr(totals, name) + getattr(event, name))
        totals.counts.update(event.counts)
        totals.add(event)
        row = self.rows.get(event.instance)
        if row is None:
            return
        row.counts.update(event.counts)
        mine = next((one for one in reversed(row.inside) if one.operator == event.operator), None)
        if mine is not None:
            row.inside.remove(mine)
            totals.now -= 1

    def _tool_called(self, event: events.ToolCalled) -> None:
        tool = self.totals(event.operator).tools.setdefault(event.tool, ToolTotals())
        tool.values += 1
        tool.made += event.made
        tool.failed += event.failed
        tool.seconds += event.seconds

    def _routed(self, event: events.Routed) -> None:
        totals = self.totals(event.operator)
        totals.choice = event.choice
        totals.regret = event.regret if totals.regret is None else totals.regret + (event.regret or 0.0)

    def _engine_stepped(self, event: events.EngineStepped) -> None:
        report = event.report
        assert isinstance(report, EngineFigures)
        model = self.models.get(report.model)
        if model is None:
            model = self.models[report.model] = ModelState(report.model, report)
            model.add_earlier(self._missed_steps.pop(report.model, ()))
        model.add(event)
        self.time.step(event, judges=self.plan is not None and report.model in self.plan.verifiers, rows=self.running)

    def _replica_gone(self, event: events.ReplicaGone) -> None:
        self.gone[event.replica] = event.why

    def _server_reported(self, event: events.ServerReported) -> None:
        server, first = self.servers.get(event.model), event.model not in self.servers
        if server is None:
            server = self.servers[event.model] = ServerState(event)
        elif server.latest.in_flight:
            self.time.asked(server.latest.at, event.at)
        server.add(event, first=first)

    def _expanded(self, event: events.Expanded) -> None:
        self.tree(event.instance).expanded(event)

    def _valued(self, event: events.Valued) -> None:
        self.tree(event.instance).valued(event)
        if event.scores:
            self.scorers[event.column] = event.operator

    def _selected(self, event: events.Selected) -> None:
        line = None if self.plan is None else self.plan.line(event.operator)
        self.tree(event.instance).selected(event, "" if line is None else line.operator)

    def _compared(self, event: events.Compared) -> None:
        self.tree(event.instance).compared(event)

    def _given_up(self, event: events.GivenUp) -> None:
        self.tree(event.instance).given_up_on(event)

    def _answered(self, event: events.Answered) -> None:
        self.tree(event.instance).answered(event.path, event.aside)

    def _earlier(self, event: events.Earlier) -> None:
        self.missed_rows, self.missed_events, self._missed_steps = event.rows, event.events, dict(event.models)
        for operator, counts in event.counts.items():
            self.totals(operator).counts.update(counts)
        for operator, sums in event.operators.items():
            if len(sums) == len(_SUMS) + 1:
                totals = self.totals(operator)
                for name, value in zip(("runs", *_SUMS), sums, strict=True):
                    setattr(totals, name, value if name == "seconds" else int(value))

    def _lost(self, event: events.Lost) -> None:
        self.lost += event.count


# What takes each kind of event is the method that is named for it.
_TAKES: dict[type[Event], Callable[[RunState, Any], None]] = {
    kind: getattr(RunState, method)
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event)
    if hasattr(RunState, method := re.sub("(?=[A-Z])", "_", kind.__name__).lower())
}
