"""A vote that ends the sampling that feeds it: samples that can no longer change the winner are given up.

Rows go to the vote one by one as their samples end, through the operators between. A sample that has not ended can add
at most its bound to one answer, and cannot lower any. The vote is decided when no answer, known or new, could get more
than the leader if all open samples voted for it. On equal totals the value seen first wins, so then the leader's first
row must come before the other answer's and before all open samples. Where votes are counted, the vote makes the
leader's first row, so no earlier row may be open either. Where votes are weighted, nobody reads that row: the rule
ensures it.

A `keep` of the rows with the fewest tokens likewise: a sample that has more of them than as many rows as are kept is
given up. Ties go to the earlier row, so one that has as many goes on.

A vote `decided=` counts rows in their order, so that only those before the first open sample tell anything. In waves,
only as many samples are begun as could decide it if all of them voted for the leader.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from qpdsl.executor.requests.request import Completion, Sample
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.generate.continuation import Continuation, finished_row, read_contexts, thought_tokens
from qpdsl.executor.runtime.generate.sampling import Sampling, TokenCounter
from qpdsl.executor.runtime.generate.thought import submit
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, Usage
from qpdsl.executor.runtime.instance.operator_events import (
    MadeRow,
    emit_changes,
    emit_done,
    emit_expanded,
    emit_started,
)
from qpdsl.executor.runtime.operators.relational import sort_key, why_none
from qpdsl.executor.runtime.operators.vote import answers_of, decided_after, stays_ahead, weight_of
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, VoteStrategy

Run = Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]]
# Totals are compared in five digits; what is nearer than this is left to the whole vote.
_SAME = 1e-4
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

    def is_decided(self, bound: float, *, weighted: bool) -> bool:
        """Whether nothing that is out can change the vote, where each row can add up to `bound`."""
        if not self.totals:
            return not self.out
        leader = max(self.totals, key=lambda answer: (self.totals[answer], -self.first[answer]))
        total, first = self.totals[leader], self.first[leader]
        more = len(self.out) * bound
        others = [(value, self.first[answer]) for answer, value in self.totals.items() if answer != leader]
        if weighted:
            return total > max([value for value, _ in others], default=0.0) + more + _SAME
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
    feeding = _SampleQueue(nodes[0], rows, own, limits=isinstance(vote.op, ops.Keep))
    accounts[0].rows_in = len(rows)
    known: dict[int, Row] = {}
    out = set(range(feeding.slots))
    bound, sure = _bound(nodes, instance), instance.number("decided", getattr(vote.op, "decided", None))
    assert isinstance(vote.strategy, VoteStrategy)
    waves, whole = sure is not None and vote.strategy.waves, vote.strategy.whole
    start = time.monotonic()
    try:
        feeding.begin(votes_to_decide(0, 0, sure) if waves and sure is not None else feeding.slots)
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
                keys = [sort_key(row.columns["tokens"]) for row in known.values()]
                tokens = sorted(key for is_number, key in keys if is_number)
                feeding.counter.most = tokens[kept - 1] if len(tokens) >= kept else math.inf
                continue
            if sure is None:
                if _tally(vote.op, known, out).is_decided(bound, weighted=vote.op.weight is not None):
                    break
                continue
            if _is_sure(vote.op, known, out, sure, whole=whole):
                break
            if feeding.idle:
                feeding.begin(_missing_votes(vote.op, known, sure))
    finally:
        await feeding.close()
        accounts[0].seconds = time.monotonic() - start - sum(account.seconds for account in accounts[1:-1])
        for account in accounts:
            instance.usage.add(account.usage)
    own = replace(instance, usage=accounts[-1].usage, operator=vote.id)
    voters = tuple(known[slot] for slot in sorted(known))
    between = zip(nodes, accounts, strict=True)
    instance.emptied += [
        why_none(node.op, instance) for node, account in between if account.rows_in and not account.rows_out
    ][:1]
    winners = await run(vote, voters, own)
    if isinstance(vote.op, ops.Vote) and not whole:
        # How many rows came to the vote depends on which ended first.
        instance.supports.pop(vote.id, None)
    if instance.watched:
        emit_changes(vote.op, voters, winners, own)
    accounts[-1].rows_in, accounts[-1].rows_out = len(voters), len(winners)
    for node, account in zip(nodes, accounts, strict=True):
        own = replace(instance, usage=account.usage, operator=node.id)
        emit_done(account.rows_in, account.rows_out, account.seconds, own)
    return winners


class _SampleQueue:
    """The samples of a `generate` as they end. A row's place among all that it makes is its slot."""

    def __init__(self, node: PhysicalOp, rows: Candidates, instance: Instance, *, limits: bool) -> None:
        assert isinstance(node.op, ops.Generate) and isinstance(node.strategy, GenerateStrategy)
        self._sampling = sampling = Sampling.of(node.op, instance, node.strategy)
        self._ready: asyncio.Queue[tuple[int, Row | None] | BaseException] = asyncio.Queue()
        self._waiting: dict[asyncio.Task[Completion], Ticket] = {}
        self.counter = TokenCounter(sampling.model, limits=limits)
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
        """The rows that are done since the last time, at least one; None where it was given up. Raises EngineError."""
        ready = [await self._ready.get()]
        while not self._ready.empty():
            ready.append(self._ready.get_nowait())
        rows: list[tuple[int, Row | None]] = []
        for result in ready:
            if isinstance(result, BaseException):
                raise result
            rows.append(result)
        self._under_way -= len(rows)
        return rows

    def tell(self) -> None:
        """Tells whoever watches of the rows that samples made since the last time."""
        fresh, self._unreported = self._unreported, []
        if fresh:
            emit_expanded(fresh, self._sampling.model, self._sampling.instance)

    async def close(self) -> None:
        """Gives up the samples that have not ended."""
        for task in self._waiting:
            task.cancel()
        usage = self._sampling.instance.usage
        completions = await asyncio.gather(*self._waiting, return_exceptions=True)
        for ticket, completion in zip(self._waiting.values(), completions, strict=True):
            if isinstance(completion, Completion):
                usage.took(ticket)
            else:
                usage.spent(ticket)
        self.counter.count_rest(self._samples, usage)
        usage.counts["given_up"] += self._drawn - len(self._samples)

    def _submit(self, continuation: Continuation, slot: int, part: range) -> None:
        sampling, instance = self._sampling, self._sampling.instance
        first = part.start
        for request in sampling.requests(continuation, counter=self.counter, part=part):
            ticket = submit(instance.services.engine, sampling.model.name, request)
            ticket.on_sample = partial(self._sample_ended, continuation, slot, first)
            instance.usage.prompt_tokens += len(request.prompt)
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
        if self.counter.outrun(sample):
            for number, _ in enumerate(copies, first + index):
                self._ready.put_nowait((slot + number, None))
            return
        self._samples.append(sample)
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
            emit_changes(node.op, before, rows, own)
    return list(zip(slots, rows, strict=True))


def _tally(op: ops.Vote, known: dict[int, Row], out: set[int]) -> Tally:
    slots = sorted(known)
    totals: dict[Hashable, float] = {}
    first: dict[Hashable, int] = {}
    values = [known[slot].columns.get(op.column.id) for slot in slots]
    for slot, answer in zip(slots, answers_of(op, values), strict=True):
        weight = weight_of(op, known[slot])
        if answer is not None and weight is not None:
            totals[answer] = totals.get(answer, 0.0) + weight
            first.setdefault(answer, slot)
    return Tally(totals, first, frozenset(out))


def votes_to_decide(leader: int, second: int, sure: float) -> int:
    """How many more votes for the leader would make it sure to stay ahead."""
    more = 1
    while stays_ahead(leader + more, second) < sure and more < _MAX_WAVE:
        more += 1
    return more


def _is_sure(op: ops.Vote, known: dict[int, Row], out: set[int], sure: float, *, whole: bool) -> bool:
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
    return _tally(op, before, later).is_decided(1.0, weighted=False)


def _missing_votes(op: ops.Vote, known: dict[int, Row], sure: float) -> int:
    """How many votes it takes at least to decide one that the rows known do not decide."""
    answers = answers_of(op, [known[slot].columns.get(op.column.id) for slot in sorted(known)])
    votes = [count for _, count in Counter(answer for answer in answers if answer is not None).most_common(2)]
    leader, second = (*votes, 0, 0)[:2]
    return votes_to_decide(leader, second, sure)


def _bound(nodes: tuple[PhysicalOp, ...], instance: Instance) -> float:
    """The most that one row can add: 1, but for a verifier whose scores know no bound."""
    scores = [node.op for node in nodes if isinstance(node.op, ops.StepScore)]
    verifiers = [instance.services.verifiers[op.verifier.name] for op in scores]
    return 1.0 if all(verifier.bounded for verifier in verifiers) else float("inf")
