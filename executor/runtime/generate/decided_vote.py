"""A vote that ends the sampling that feeds it: samples that can no longer change the winner are given up.

Rows go to the vote one by one as their samples end, through the operators between. What is still out can add at most
its bound to one answer, and takes nothing away. The winner stands when no answer, known or new, could come to more with
all that is out; on equal totals the value seen first wins, so then the leader's first row must stand before the other's
and before all that is out. Where votes are counted, what is the leader's best row must be certain as well (no earlier
row is out), since that row is what the vote makes. Where they are weighed, nobody reads that row: the rule saw to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from qpdsl.executor.events.events import OperatorDone
from qpdsl.executor.requests.request import Completion, Sample
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.generate.continuation import Going, passed
from qpdsl.executor.runtime.generate.sampling import Drawing, Pushes
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, Usage
from qpdsl.executor.runtime.instance.tell import tell_done, tell_expanded, tell_started
from qpdsl.executor.runtime.operators.vote import answers_of, weight_of
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp

Run = Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]]
# Totals are compared in five digits; what is nearer than this is left to the whole vote.
_SAME = 1e-4


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


async def decided(nodes: tuple[PhysicalOp, ...], rows: Candidates, instance: Instance, run: Run) -> Candidates:
    """The rows of the vote that `nodes` end in; they begin with the `generate` that feeds it. Raises RowError."""
    accounts = [_Account() for _ in nodes]
    if instance.watched:
        tell_started(len(rows), replace(instance, operator=nodes[0].id))
    vote = nodes[-1]
    assert isinstance(vote.op, ops.Vote)
    feeding = _Feeding(nodes[0], rows, replace(instance, usage=accounts[0].usage, operator=nodes[0].id))
    accounts[0].rows_in = len(rows)
    known: dict[int, Row] = {}
    out = set(range(feeding.slots))
    bound = _bound(nodes, instance)
    start = time.monotonic()
    try:
        while out:
            ended = await feeding.ended()
            if instance.watched:
                feeding.tell(rows)
            accounts[0].rows_out += len(ended)
            for slot, row in await _through(nodes[1:-1], ended, accounts[1:-1], instance, run):
                known[slot] = row
            out.difference_update(slot for slot, _ in ended)
            if out and _tally(vote.op, known, out).is_decided(bound, weighted=vote.op.weight is not None):
                break
    finally:
        await feeding.close()
        accounts[0].seconds = time.monotonic() - start - sum(account.seconds for account in accounts[1:-1])
        for account in accounts:
            instance.usage.add(account.usage)
    own = replace(instance, usage=accounts[-1].usage, operator=vote.id)
    given = tuple(known[slot] for slot in sorted(known))
    made = await run(vote, given, own)
    if instance.watched:
        tell_done(vote.op, given, made, own)
    accounts[-1].rows_in, accounts[-1].rows_out = len(given), len(made)
    for node, account in zip(nodes, accounts, strict=True):
        _report(node, account, instance)
    return made


class _Feeding:
    """The samples of a `generate` as they end. A row's place among all that it makes is its slot."""

    def __init__(self, node: PhysicalOp, rows: Candidates, instance: Instance) -> None:
        assert isinstance(node.op, ops.Generate) and isinstance(node.strategy, GenerateStrategy)
        self._drawing = drawing = Drawing.of(node.op, instance, node.strategy)
        self._ready: asyncio.Queue[tuple[int, Row] | BaseException] = asyncio.Queue()
        self._waiting: list[asyncio.Task[Completion]] = []
        self._pushes = Pushes()
        self._samples: list[Sample] = []
        self._untold: list[tuple[Row, Sample]] = []
        self.slots = self._drawn = 0
        going = [drawing.going(row) for row in rows]
        for row, each in zip(rows, going, strict=True):
            if each is None:
                self._ready.put_nowait((self.slots, passed(row, node.op)))
                self.slots += 1
                continue
            self._submit(each)
            self.slots += drawing.options.count

    async def ended(self) -> list[tuple[int, Row]]:
        """The rows that are done since the last time, at least one. Raises EngineError."""
        found = [await self._ready.get()]
        while not self._ready.empty():
            found.append(self._ready.get_nowait())
        rows: list[tuple[int, Row]] = []
        for one in found:
            if isinstance(one, BaseException):
                raise one
            rows.append(one)
        return rows

    def tell(self, given: Candidates) -> None:
        """Tells whoever watches of the rows that samples made since the last time."""
        told, self._untold = self._untold, []
        if told:
            rows, samples = [row for row, _ in told], [sample for _, sample in told]
            tell_expanded(rows, given, samples, self._drawing.model, self._drawing.instance)

    async def close(self) -> None:
        """Gives up the samples that have not ended."""
        for task in self._waiting:
            task.cancel()
        for completion in await asyncio.gather(*self._waiting, return_exceptions=True):
            if isinstance(completion, Completion):
                self._drawing.instance.usage.cached_tokens += completion.cached
        usage = self._drawing.instance.usage
        usage.sampled_tokens += self._pushes.rest(self._samples)
        usage.counts["given_up"] += self._drawn - len(self._samples)

    def _submit(self, each: Going) -> None:
        drawing, instance = self._drawing, self._drawing.instance
        first = 0
        for request in drawing.requests(each, pushes=self._pushes):
            ticket = instance.services.engine.submit(drawing.model.name, request)
            ticket.each = partial(self._sampled, each, self.slots, first)
            instance.usage.prompt_tokens += len(request.prompt)
            first += len(request.keys)
            task = asyncio.ensure_future(_answer(ticket))
            task.add_done_callback(self._failed)
            self._waiting.append(task)
        self._drawn += drawing.distinct
        instance.usage.counts.update(going=1, context=len(each.prompt))

    def _sampled(self, each: Going, slot: int, first: int, index: int, sample: Sample) -> None:
        """Engine side: a sample has ended; its copies have too."""
        self._samples.append(sample)
        copies = self._drawing.copied((sample,)) if self._drawing.distinct == 1 else (sample,)
        usage = self._drawing.instance.usage
        usage.sampled_tokens += len(sample.tokens)
        usage.counts["samples"] += 1
        usage.counts["longest"] = max(usage.counts["longest"], len(sample.tokens))
        for number, copy in enumerate(copies, first + index):
            usage.near_ties += copy.near_ties
            row = self._drawing.child(each, number, copy)
            if self._drawing.instance.watched:
                self._untold.append((row, copy))
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
    slots, given = [slot for slot, _ in ended], tuple(row for _, row in ended)
    for node, account in zip(nodes, accounts, strict=True):
        start = time.monotonic()
        own = replace(instance, usage=account.usage, operator=node.id)
        account.rows_in += len(given)
        before = given
        if isinstance(node.op, ops.Where):
            kept = [(slot, row) for slot, row in zip(slots, given, strict=True) if await run(node, (row,), own)]
            slots, given = [slot for slot, _ in kept], tuple(row for _, row in kept)
        else:
            given = await run(node, given, own)
        account.rows_out += len(given)
        account.seconds += time.monotonic() - start
        if instance.watched:
            tell_done(node.op, before, given, own)
    return list(zip(slots, given, strict=True))


def _tally(op: ops.Vote, known: dict[int, Row], out: set[int]) -> Tally:
    slots = sorted(known)
    totals: dict[Hashable, float] = {}
    first: dict[Hashable, int] = {}
    values = [known[slot].columns.get(op.column) for slot in slots]
    for slot, answer in zip(slots, answers_of(op, values), strict=True):
        if answer is not None:
            totals[answer] = totals.get(answer, 0.0) + weight_of(op, known[slot])
            first.setdefault(answer, slot)
    return Tally(totals, first, frozenset(out))


def _bound(nodes: tuple[PhysicalOp, ...], instance: Instance) -> float:
    """The most that one row can add: 1, but for a verifier whose scores know no bound."""
    scores = [node.op for node in nodes if isinstance(node.op, ops.Score)]
    verifiers = [instance.services.verifiers[op.verifier] for op in scores]
    return 1.0 if all(verifier.bounded for verifier in verifiers) else float("inf")


def _report(node: PhysicalOp, account: _Account, instance: Instance) -> None:
    instance.services.events.emit(
        OperatorDone(
            instance=instance.name,
            operator=node.id,
            rows_in=account.rows_in,
            rows_out=account.rows_out,
            prompt_tokens=account.usage.prompt_tokens,
            sampled_tokens=account.usage.sampled_tokens,
            seconds=account.seconds,
            cached_tokens=account.usage.cached_tokens,
            rounds=instance.rounds,
            baseline=instance.baseline,
            counts={**account.usage.counts, "near_ties": account.usage.near_ties},
        )
    )
