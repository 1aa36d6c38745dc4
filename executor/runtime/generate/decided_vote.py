"""A vote that ends the sampling that feeds it: samples that can no longer change the winner are given up.

Rows go to the vote one by one as their samples end, through the operators between. A sample that has not ended can add
at most its bound to one answer, 1 or what its weight can still be, and cannot lower any. The vote is decided when no
answer, known or new, could get more than the leader if all open samples voted for it. On equal totals the value seen
first wins, so then the leader's first row must come before the other answer's and before all open samples. Where votes
are counted, the vote makes the leader's first row, so no earlier row may be open either. Where votes are weighted,
nobody reads that row: the rule ensures it.

A `keep` likewise: a sample is given up once as many rows as are kept are surely before it, whatever it still comes to
(`open_samples.py`). Of equal keys the earlier row comes first.

A vote `decided=` counts rows in their order, so that only those before the first open sample tell anything. In waves,
only as many samples are begun as could decide it if all of them voted for the leader. Those of a `keep` are a quarter
of the samples, and then the others, most of which can soon be given up.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from qpdsl.executor.events.events import Path
from qpdsl.executor.requests.request import Completion, Sample, WatchAround
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.generate.continuation import Continuation, finished_row, read_contexts, thought_tokens
from qpdsl.executor.runtime.generate.open_samples import SAME, OpenSamples
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.generate.score_ahead import StepsAhead
from qpdsl.executor.runtime.generate.thought import submit
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, Usage
from qpdsl.executor.runtime.instance.operator_events import (
    MadeRow,
    emit_changes,
    emit_done,
    emit_expanded,
    emit_given_up,
    emit_started,
)
from qpdsl.executor.runtime.operators.relational import sort_key, why_none
from qpdsl.executor.runtime.operators.vote import answers_of, decided_after, stays_ahead
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, VoteStrategy

Run = Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]]
# Fewer samples of a `keep` are begun all at once.
_LEAST_IN_WAVES = 8
# The most samples that are begun at once in waves.
_MAX_WAVE = 1024


@dataclass(slots=True)
class _Account:
    """What one operator has done so far."""

    rows_in: int = 0
    rows_out: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tally:
    """The votes so far: for each answer its total and the number of its first row; `out` are rows not known yet."""

    totals: dict[Hashable, float]
    first: dict[Hashable, int]
    out: frozenset[int]

    def is_decided(self, more: float, *, weighted: bool) -> bool:
        """Whether nothing that is out can change the vote, where all that is can add up to `more` to one answer."""
        if not self.totals:
            return not self.out
        leader = max(self.totals, key=lambda answer: (self.totals[answer], -self.first[answer]))
        total, first = self.totals[leader], self.first[leader]
        others = [(value, self.first[answer]) for answer, value in self.totals.items() if answer != leader]
        if weighted:
            return total > max([value for value, _ in others], default=0.0) + more + SAME
        if self.out and min(self.out) < first:
            return False
        return more <= total and all(
            value + more < total or (value + more == total and first < at) for value, at in others
        )


async def run_decided_vote(nodes: tuple[PhysicalOp, ...], rows: Candidates, instance: Instance, run: Run) -> Candidates:
    """The rows of the vote or `keep` that `nodes` end in, the first of which feeds it. Raises RowError."""
    accounts = [_Account() for _ in nodes]
    if instance.watched:
        emit_started(len(rows), replace(instance, operator=nodes[0].id))
    vote = nodes[-1]
    assert isinstance(vote.op, ops.Vote | ops.Keep)
    kept = instance.whole("keep", vote.op.count) if isinstance(vote.op, ops.Keep) else 0
    assert isinstance(nodes[0].op, ops.Generate)
    await read_contexts(nodes[0].op, rows, instance)
    own = replace(instance, usage=accounts[0].usage, operator=nodes[0].id)
    ahead = StepsAhead(nodes, [account.usage for account in accounts], instance)
    feeding = _SampleQueue(nodes, rows, own, ahead)
    accounts[0].rows_in, feeding.open.kept = len(rows), kept
    known: dict[int, Row] = {}
    out = set(range(feeding.slots))
    sure = instance.number("decided", getattr(vote.op, "decided", None))
    assert isinstance(vote.strategy, VoteStrategy)
    whole = vote.strategy.whole
    start = time.monotonic()
    try:
        feeding.begin(_first_wave(feeding.slots, kept, sure) if vote.strategy.waves else feeding.slots)
        while out:
            ended = await feeding.ended()
            if instance.watched:
                feeding.tell()
            rows_made = [(slot, row) for slot, row in ended if row is not None]
            accounts[0].rows_out += len(rows_made)
            for slot, row in await _through(nodes[1:-1], rows_made, accounts[1:-1], instance, run):
                known[slot] = row
            out.difference_update(slot for slot, _ in ended)
            if not out:
                break
            if isinstance(vote.op, ops.Keep):
                keys = instance.values(vote.op.by, tuple(known.values()))
                feeding.open.known = [(*sort_key(key), -slot) for slot, key in zip(known, keys, strict=True)]
                feeding.open.rank()
                if feeding.idle:
                    feeding.begin(feeding.slots)
                continue
            if sure is None:
                tally = _tally(vote.op, known, out, instance)
                if tally.is_decided(feeding.open.most(tally.out), weighted=vote.op.weight is not None):
                    break
                continue
            if _is_sure(vote.op, known, out, sure, instance, whole=whole):
                break
            if feeding.idle:
                feeding.begin(_missing_votes(vote.op, known, sure))
    finally:
        await ahead.close()
        await feeding.close()
        accounts[0].seconds = time.monotonic() - start - sum(account.seconds for account in accounts[1:-1])
        for account in accounts:
            instance.usage.add(account.usage)
    own = replace(instance, usage=accounts[-1].usage, operator=vote.id)
    voters = tuple(known[slot] for slot in sorted(known))
    between = zip(nodes, accounts, strict=True)
    instance.emptied += [
        why_none(node.op, ()) for node, account in between if account.rows_in and not account.rows_out
    ][:1]
    winners = await run(vote, voters, own)
    if isinstance(vote.op, ops.Vote) and not whole:
        # How many rows came to the vote depends on which ended first.
        instance.supports.pop(vote.id, None)
    if instance.watched:
        feeding.tell()
        emit_given_up([path for slot, path in feeding.paths.items() if slot not in known], feeding.instance)
        emit_changes(vote, voters, winners, own)
    accounts[-1].rows_in, accounts[-1].rows_out = len(voters), len(winners)
    for node, account in zip(nodes, accounts, strict=True):
        own = replace(instance, usage=account.usage, operator=node.id)
        emit_done(account.rows_in, account.rows_out, account.seconds, own)
    return winners


class _SampleQueue:
    """The samples of a `generate` as they end. A row's place among all that it makes is its slot.

    `paths` are those of the rows that samples make, by their slots.
    """

    def __init__(self, nodes: tuple[PhysicalOp, ...], rows: Candidates, instance: Instance, ahead: StepsAhead) -> None:
        node, last = nodes[0], nodes[-1]
        assert isinstance(node.op, ops.Generate) and isinstance(node.strategy, GenerateStrategy)
        self._sampling = sampling = Sampling.of(node.op, instance, node.strategy)
        self.instance = instance
        self.paths: dict[int, Path] = {}
        self._ready: asyncio.Queue[tuple[int, Row | None] | BaseException | None] = asyncio.Queue()
        self._waiting: dict[asyncio.Task[Completion], Ticket] = {}
        limits = isinstance(last.op, ops.Keep) and not instance.services.shares_samples
        self.open = OpenSamples(sampling.model, nodes, instance, limits=limits, scored=ahead.active)
        self.open.on_step = ahead.on_step
        ahead.on_known = self._ready.put_nowait
        self._samples: list[Sample] = []
        self._unreported: list[MadeRow] = []
        self.slots = self._drawn = self._under_way = 0
        # The samples that are not begun: those of a row, by its first slot, from a number on.
        self._unbegun: deque[tuple[Continuation, int, int]] = deque()
        # All of them first: one that raises is to leave no request behind.
        continuations = sampling.continuations(rows)
        for row, continuation in zip(rows, continuations, strict=True):
            if continuation is None:
                self._ready.put_nowait((self.slots, finished_row(row, node.op)))
                self._under_way += 1
                self.slots += 1
                continue
            self._unbegun.append((continuation, self.slots, 0))
            self._drawn += sampling.distinct(continuation)
            for slot, path in enumerate(continuation.paths, self.slots):
                self.open.add(slot, path, continuation)
                self.paths[slot] = path
            self.slots += continuation.options.count

    @property
    def idle(self) -> bool:
        """Whether all samples that were begun are done."""
        return not self._under_way

    def begin(self, count: int) -> None:
        """Begins the next samples, so many where there are more. Samples that are copies of one are begun with it."""
        while count > 0 and self._unbegun:
            continuation, slot, first = self._unbegun.popleft()
            distinct = self._sampling.distinct(continuation)
            last = min(first + count, distinct)
            self._submit(continuation, slot, range(first, last))
            if last < distinct:
                self._unbegun.appendleft((continuation, slot, last))
            begun = (last - first) * (continuation.options.count // distinct)
            self._under_way += begun
            count -= begun

    async def ended(self) -> list[tuple[int, Row | None]]:
        """The rows that are done since the last time, None where one was given up; none where more is known of others.

        Raises EngineError.
        """
        ready = [await self._ready.get()]
        while not self._ready.empty():
            ready.append(self._ready.get_nowait())
        rows: list[tuple[int, Row | None]] = []
        for result in ready:
            if isinstance(result, BaseException):
                raise result
            rows += [] if result is None else [result]
        self._under_way -= len(rows)
        return rows

    def tell(self) -> None:
        """Tells whoever watches of the rows that samples made since the last time."""
        fresh, self._unreported = self._unreported, []
        if fresh:
            emit_expanded(fresh, self._sampling.op, self._sampling.model, self._sampling.instance)

    async def close(self) -> None:
        """Gives up the samples that have not ended."""
        for task, ticket in self._waiting.items():
            task.cancel()
            # A task that has not begun never will, and gives up nothing itself.
            ticket.cancel()
        usage = self._sampling.instance.usage
        await asyncio.gather(*self._waiting, return_exceptions=True)
        for ticket in self._waiting.values():
            usage.spent(ticket)
        self.open.count_rest(self._samples, usage)
        usage.counts["given_up"] += self._drawn - len(self._samples)

    def _submit(self, continuation: Continuation, slot: int, part: range) -> None:
        sampling, instance = self._sampling, self._sampling.instance
        first = part.start
        for request in sampling.requests(continuation, counter=self.open, part=part):
            ticket = submit(instance.services.engine, sampling.model.name, request)
            ticket.on_sample = partial(self._sample_ended, continuation, slot, first)
            first += len(request.keys)
            task = asyncio.ensure_future(_answer(ticket))
            task.add_done_callback(self._failed)
            self._waiting[task] = ticket
        if part.start == 0:
            instance.usage.counts.update(going=1, context=len(continuation.prompt))

    def _sample_ended(self, continuation: Continuation, slot: int, first: int, index: int, sample: Sample) -> None:
        """Engine side: a sample has ended; its copies have too."""
        alone = self._sampling.distinct(continuation) == 1
        copies = self._sampling.with_copies(continuation, (sample,)) if alone else (sample,)
        if self.open.ended(sample):
            for number, _ in enumerate(copies, first + index):
                self._ready.put_nowait((slot + number, None))
            return
        self._samples.append(sample)
        if isinstance(sample.watch, WatchAround):
            sample = replace(sample, watch=sample.watch.own)
            copies = (sample,) * len(copies)
        usage = self._sampling.instance.usage
        usage.sampled_tokens += sample.size - self._sampling.drawn_before(continuation, (sample,), first + index)
        usage.counts["samples"] += 1
        self._sampling.count_steps(continuation, (sample,))
        usage.counts["longest"] = max(usage.counts["longest"], sample.size)
        for number, copy in enumerate(copies, first + index):
            usage.near_ties += copy.near_ties
            row = self._sampling.child(continuation, number, copy)
            if self._sampling.instance.watched:
                self._unreported.append(MadeRow(row, copy, continuation.earlier, thought_tokens(copy)))
            self._ready.put_nowait((slot + number, row))

    def _failed(self, task: asyncio.Task[Completion]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ready.put_nowait(error)


async def _answer(ticket: Ticket) -> Completion:
    return await ticket


async def _through(
    nodes: Sequence[PhysicalOp],
    ended: list[tuple[int, Row]],
    accounts: Sequence[_Account],
    instance: Instance,
    run: Run,
) -> list[tuple[int, Row]]:
    """What the operators between make of some rows. Each of them looks at one row at a time."""
    slots, rows = [slot for slot, _ in ended], tuple(row for _, row in ended)
    for node, account in zip(nodes, accounts, strict=True):
        start = time.monotonic()
        # One row that is dropped is not all of them.
        own = replace(instance, usage=account.usage, operator=node.id, emptied=[])
        account.rows_in += len(rows)
        before = rows
        if isinstance(node.op, ops.Where):
            kept = [(slot, row) for slot, row in zip(slots, rows, strict=True) if await run(node, (row,), own)]
            slots, rows = [slot for slot, _ in kept], tuple(row for _, row in kept)
        else:
            rows = await run(node, rows, own)
        account.rows_out += len(rows)
        account.seconds += time.monotonic() - start
        if instance.watched:
            emit_changes(node, before, rows, own)
    return list(zip(slots, rows, strict=True))


def _tally(op: ops.Vote, known: dict[int, Row], out: set[int], instance: Instance) -> Tally:
    slots = sorted(known)
    totals: dict[Hashable, float] = {}
    first: dict[Hashable, int] = {}
    rows = tuple(known[slot] for slot in slots)
    answers = answers_of(op, [row.columns.get(op.column.id) for row in rows])
    weights = [1] * len(rows) if op.weight is None else instance.values(op.weight, rows)
    for slot, answer, weight in zip(slots, answers, weights, strict=True):
        if answer is not None and isinstance(weight, (int, float)):
            totals[answer] = totals.get(answer, 0.0) + weight
            first.setdefault(answer, slot)
    return Tally(totals, first, frozenset(out))


def _first_wave(slots: int, kept: int, sure: float | None) -> int:
    """How many samples are begun first: of a `keep` enough to fill it, and a quarter, which the others are held to."""
    if sure is not None:
        return votes_to_decide(0, 0, sure)
    return max(kept, slots // 4) if slots >= _LEAST_IN_WAVES else slots


def votes_to_decide(leader: int, second: int, sure: float) -> int:
    """How many more votes for the leader would make it sure to stay ahead."""
    more = 1
    while stays_ahead(leader + more, second) < sure and more < _MAX_WAVE:
        more += 1
    return more


def _is_sure(
    op: ops.Vote, known: dict[int, Row], out: set[int], sure: float, instance: Instance, *, whole: bool
) -> bool:
    """Whether the rows before the first open sample decide a vote that counts them in their order.

    They do so too where all others together could not make up for the leader's votes, unless the `whole` count is read.
    """
    frontier = min(out)
    slots = [slot for slot in sorted(known) if slot < frontier]
    answers = answers_of(op, [known[slot].columns.get(op.column.id) for slot in slots])
    if decided_after(answers, sure) is not None:
        return True
    if whole:
        return False
    before = {slot: known[slot] for slot in slots}
    later = out | {slot for slot in known if slot > frontier}
    return _tally(op, before, later, instance).is_decided(len(later), weighted=False)


def _missing_votes(op: ops.Vote, known: dict[int, Row], sure: float) -> int:
    """How many votes it takes at least to decide one that the rows known do not decide."""
    answers = answers_of(op, [known[slot].columns.get(op.column.id) for slot in sorted(known)])
    votes = [count for _, count in Counter(answer for answer in answers if answer is not None).most_common(2)]
    leader, second = (*votes, 0, 0)[:2]
    return votes_to_decide(leader, second, sure)
