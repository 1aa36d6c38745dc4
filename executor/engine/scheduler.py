"""Which sequences of one model run in the next step, and with how many tokens.

Decode first, then prefill in chunks into what is left of the token budget (Sarathi-Serve's stall-free batching). Where
memory runs out, the sequence that ranks last, of whichever model, is preempted: it gives its pages back and is computed
again later (vLLM's recompute preemption). No sequence waits for one that ranks after it.

Run-ahead work ranks last. Then more urgent requests rank first, then those whose deadlines leave least slack (as in
Prism's local scheduler: Yu et al., "Prism: Unleashing GPU Sharing for Cost-Efficient Multi-LLM Serving", 2025), then
those that came first. A slack that is estimated when a request comes orders it once and for all, so that no two
sequences take turns in preempting each other. A deadline that has passed counts no longer: what is late already must
not make others late too. Whoever was outranked too often ranks first from then on.

Models that share memory have a scheduler each, in one `SchedulerGroup`, which compares the ranks of all sequences.

On a device one model's step may be scheduled while another's is in flight: launched, with its tokens still unknown.
What is in flight loses nothing. Where the sequence that would have to give way is in flight, this step waits until it
is not, so that the same sequences give way as if each step were collected before the next is scheduled.
"""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush

from qpdsl.executor.engine.memory.kv_cache_manager import KVCacheManager
from qpdsl.executor.engine.memory.prefix_tree import Reclaimer
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Rank, Sequence
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.ticket import Ticket

# The weight of what was seen last, in the means over steps and over samples.
_RATE = 0.05
# So many of the waiting sequences, the first ones, are ordered by how much of their prompt is cached.
_WINDOW = 32
# A sequence that was overtaken by so many younger ones is admitted before any other of its standing. One that was
# outranked by so many, while it was the oldest to wait, ranks before any other.
_PATIENCE = 32


class WorkEstimate:
    """Learns how long a step of the model takes, and what part of `max_tokens` its samples have.

    A step counts from its start to that of the model's next one, where there was work all the time: what other models
    and the awaiting coroutines take in between is waited for too. A step takes up to `token_budget` tokens of a prompt.
    """

    def __init__(self, token_budget: int) -> None:
        self._token_budget = token_budget
        self._step_seconds: float | None = None
        self._share = 1.0
        self._started: float | None = None

    def step_starts(self, now: float) -> None:
        """Notes the time at which a step of the model starts, in seconds."""
        if self._started is not None:
            taken = now - self._started
            before = taken if self._step_seconds is None else self._step_seconds
            self._step_seconds = before + _RATE * (taken - before)
        self._started = now

    def idle(self) -> None:
        """Notes that the model has no work left: the time until its next step is no step's."""
        self._started = None

    def ended(self, drawn: int, max_tokens: int) -> None:
        """Notes how many tokens a sample came to."""
        self._share += _RATE * (min(1.0, drawn / max_tokens) - self._share)

    def seconds(self, sequence: Sequence) -> float | None:
        """How long a sequence that has just come will take once it runs; None before two steps were seen.

        What of its prompt is cached is counted all the same: it may be evicted before its turn.
        """
        if self._step_seconds is None:
            return None
        steps = -(-sequence.missing // self._token_budget)
        if sequence.generates:
            steps += round(self._share * sequence.generation.max_tokens)
        return max(1, steps) * self._step_seconds


class Scheduler:
    """Waiting and running sequences of one model, each in order of rank.

    `max_sequences` bounds the batch, `token_budget` the tokens of a step. Schedulers whose models share memory share a
    `group`. `preemptions` and `refusals` count the sequences that were preempted and the requests that failed.
    `on_leave` is called with each sequence that ends, is given up or loses its pages. While a step of the model is
    `in_flight`, nothing of it is scheduled, but for what runs `ahead`, and nothing is cancelled.
    """

    def __init__(
        self, memory: KVCacheManager, max_sequences: int, token_budget: int, group: SchedulerGroup | None = None
    ) -> None:
        self.memory = memory
        self.max_sequences = max_sequences
        self.token_budget = token_budget
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.refusals = 0
        self.on_leave: Callable[[Sequence], None] = lambda sequence: None
        self.work = WorkEstimate(token_budget)
        self.in_flight = False
        self._blocked = False
        # No deadline of a sequence here passes before.
        self._expiry = math.inf
        self._group = group or SchedulerGroup()
        self._group.schedulers.append(self)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def ready(self) -> int:
        """Sequences that could be in the next batch, memory allowing."""
        return min(len(self.running) + len(self.waiting), self.max_sequences)

    @property
    def need(self) -> tuple[float, float]:
        """How much the sequence that ranks first needs the next step, less being more.

        That is minus its urgency, and when it must run at the latest, where its deadline presses.
        """
        first = self.first
        if first is None:
            return math.inf, math.inf
        pressing = first.pressing <= self._group.clock()
        return first.rank.urgency, first.rank.latest if pressing else math.inf

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence behind all of its standing that came before it, to this model or another."""
        request = sequence.request
        latest = self._latest(sequence)
        sequence.rank = Rank(request.priority, -request.client.urgency, latest, self._group.arrival(), sequence.index)
        self.memory.prepare(sequence)
        self._wait(sequence)

    def promote(self, ticket: Ticket) -> None:
        """Gives a request that ran ahead priority 0."""
        promoted: list[Sequence] = []
        for queue in (self.waiting, self.running):
            for sequence in queue:
                if sequence.ticket is ticket and sequence.rank.priority > 0:
                    sequence.rank = sequence.rank._replace(priority=0)
                    # Until now nobody waited for it.
                    sequence.since = time.perf_counter()
                    promoted.append(sequence)
            queue.sort(key=_rank)
        for sequence in promoted:
            if self.is_waiting(sequence):
                self._group.waits(self, sequence)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, with memory for each. Sequences that can never fit fail their tickets.

        Of a group, one scheduler at least has a chunk or fails a ticket where any has work. The running sequence
        that ranks first of all can take pages from every other; where none runs, the next one is admitted and all
        cached pages may go for it. While a step of another is in flight there may be neither: then this one is
        `blocked`, which is nobody's failure, and what it has taken until then it keeps.
        """
        assert not self.in_flight, "what follows depends on the tokens of the step in flight"
        chunks: list[Chunk] = []
        self._blocked = False
        if (now := self._group.clock()) >= self._expiry:
            self._forget_deadlines(now)
        preempted = self.preemptions
        budget = self._continue(chunks)
        # A sequence that has just been preempted must not take its pages back at once.
        if self.waiting and budget > 0 and self.preemptions == preempted and not self._blocked:
            self._admit(chunks, budget)
        if self._blocked:
            return []
        for chunk in chunks:
            self.memory.plan(chunk, self.waiting[:_WINDOW])
        return chunks

    def ahead(self, samples: list[Sequence], going: list[Sequence]) -> list[Chunk]:
        """The chunks of a step after the one in flight, in which `samples` draw; of them `going` go on, or may.

        None where that depends on what is drawn: others run or could be admitted, or memory must be taken from some.
        """
        if samples != self.running or self._group.clock() >= self._expiry:
            return []
        if self.waiting and (len(going) < self.max_sequences or self._may_replace(self.waiting[0], self.running[-1])):
            return []
        for sequence in going:
            if sequence.computed < sequence.limit:
                continue
            if self.memory.extend(sequence, 1, cold_only=self._is_idle_work(sequence)) < 1:
                return []
        return [Chunk(sequence, 1) for sequence in going]

    @property
    def blocked(self) -> bool:
        """Whether the last `schedule` ended because a sequence of a step in flight would have had to give way."""
        return self._blocked

    def too_large(self, tokens: int) -> str | None:
        """Why a sequence of so many tokens can never be served, with the arithmetic; None where it can."""
        needs = self.memory.pages_for(tokens)
        if (self.memory.states is None and needs <= self.memory.pool.free) or needs <= (has := self.memory.capacity):
            return None
        return (
            f"a sequence of {tokens} tokens needs {needs} KV pages of {self.memory.page_size}, "
            f"the budget is {has} pages; give more KV memory or shorten it"
        )

    def advance(self, chunks: list[Chunk]) -> None:
        """Marks the chunks as computed, but for what was proposed; the pages of a prefill can be shared from now on.

        Chunks that are `deferring` are none of them.
        """
        for chunk in chunks:
            self.memory.advance(chunk)

    def fork(self, prompt: Sequence) -> list[Sequence]:
        """As many samples of a prefilled prompt as the batch has room for; the others wait, first in the queue."""
        self.memory.publish(prompt)
        room = max(1, self.max_sequences - len(self.running) + 1)
        samples, rest = prompt.fork(min(prompt.copies, room))
        for sample in samples[1:]:
            self.memory.share(prompt, sample)
        at = _place(self.running, prompt) + 1
        self.running[at:at] = samples[1:]
        if rest is not None:
            self._wait(rest)
        return samples

    def finish(self, sequence: Sequence) -> None:
        """Ends a running sequence and keeps its KV for later requests."""
        del self.running[_place(self.running, sequence)]
        self.memory.retire(sequence)
        self.on_leave(sequence)
        if sequence.generates:
            self.work.ended(sequence.drawn, sequence.generation.max_tokens)

    def cancel(self, ticket: Ticket) -> None:
        """Forgets every sequence of a request and frees its pages."""
        self.waiting = [sequence for sequence in self.waiting if sequence.ticket is not ticket]
        for sequence in self.running:
            if sequence.ticket is ticket:
                self.memory.drop(sequence)
                self.on_leave(sequence)
        self.running = [sequence for sequence in self.running if sequence.ticket is not ticket]
        self._group.forget_gone()

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's pages. They stay in the prefix tree until the memory is needed."""
        del self.running[_place(self.running, sequence)]
        self.memory.retire(sequence)
        self.on_leave(sequence)
        sequence.values.clear()
        sequence.proposal = None
        self._wait(sequence)
        self.preemptions += 1

    def _continue(self, chunks: list[Chunk]) -> int:
        """Chunks of the running sequences, those that rank first first; returns what is left of the token budget."""
        running = tuple(self.running)
        missing = [sequence.missing for sequence in running]
        decoding = missing.count(1)
        budget = self.token_budget - decoding
        if decoding < len(running):
            budget = max(budget, 1)
        for sequence, rest in zip(running, missing, strict=True):
            count = 1 if rest == 1 else min(rest, budget)
            if sequence.reached + count > sequence.limit:
                # Without pages it was preempted a moment ago, to make room for a sequence before it.
                count = self._room(sequence, count) if sequence.pages and count > 0 else 0
                if self._blocked:
                    break
            if count > 0:
                if rest > 1:
                    budget -= count
                proposal = self._proposal(sequence, count, budget) if count == rest else None
                if proposal is not None:
                    budget -= len(proposal.tokens)
                chunks.append(Chunk(sequence, count, proposal, sequence.defers))
        return budget

    def _proposal(self, sequence: Sequence, count: int, budget: int) -> Proposal | None:
        """As much of what is proposed as fits behind the next `count` tokens. Nobody is preempted for it."""
        if sequence.proposal is None:
            return None
        proposal = sequence.proposal.pruned(budget)
        if proposal is not None and sequence.computed + count + len(proposal.tokens) > sequence.limit:
            room = self.memory.extend(sequence, count + len(proposal.tokens), cold_only=True)
            proposal = proposal.pruned(room - count)
        return proposal

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        computing = {digest for sequence in self.running for digest in _missing_pages(sequence)}
        for sequence in self._candidates():
            if sequence.ticket.done:
                continue
            if budget < 1 or not self._has_slot(sequence) or sequence.rank.priority > self.waiting[0].rank.priority:
                break
            if self._waits_for_prefix(sequence, computing):
                continue
            forced = self._goes_first(sequence)
            count = self._start(sequence, budget, forced)
            if count > 0:
                computing.update(_missing_pages(sequence))
                chunks.append(Chunk(sequence, count))
                budget -= count
            elif not forced or self._blocked:
                break
        # The sequence that is first of all may have taken the pages of others.
        chunks[:] = [chunk for chunk in chunks if chunk.sequence.pages]

    def _candidates(self) -> list[Sequence]:
        """The next waiting sequences: by standing, then those overtaken often, then those with most pages cached."""
        window = self.waiting[:_WINDOW]
        if len(window) == 1:
            return window

        def order(sequence: Sequence) -> tuple[tuple[int, float, float], bool, int, int]:
            rank = sequence.rank
            if sequence.overtaken >= _PATIENCE:
                return rank.standing, False, 0, rank.arrival
            return rank.standing, True, -self.memory.cached_pages(sequence), rank.arrival

        return sorted(window, key=order)

    def _has_slot(self, sequence: Sequence) -> bool:
        if len(self.running) >= self.max_sequences and self._may_replace(sequence, self.running[-1]):
            self.preempt(self.running[-1])
        return len(self.running) < self.max_sequences

    def _may_replace(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether a sequence takes the slot of one that runs: for its urgency, or for a deadline that presses."""
        if sequence.rank[:2] != other.rank[:2]:
            return sequence.rank < other.rank
        return sequence.rank.latest < other.rank.latest and sequence.pressing <= self._group.clock()

    def _waits_for_prefix(self, sequence: Sequence, computing: set[int]) -> bool:
        """True where a running prefill is about to compute its next page that is not cached."""
        if not computing or sequence.overtaken >= _PATIENCE:
            return False
        return self.memory.next_missing(sequence) in computing

    def _goes_first(self, sequence: Sequence) -> bool:
        return sequence is self._group.first() or (self._group.running == 0 and not self._is_idle_work(sequence))

    def _is_idle_work(self, sequence: Sequence) -> bool:
        """True for spare work while there is other work. It may only evict pages that are cold."""
        if sequence.rank.priority == 0:
            return False
        first = self._group.first()
        return first is not None and first.rank.priority == 0

    def _start(self, sequence: Sequence, budget: int, forced: bool) -> int:
        """Admits a waiting sequence with up to `budget` tokens; returns how many, 0 where there is no memory.

        A `forced` one makes room for itself, or fails. Others leave a free page for each sequence that runs already.
        """
        cold_only = self._is_idle_work(sequence)
        spare = 0 if forced else len(self.running)
        # One that may yet be blocked must not be left running without a page.
        force = forced and not self._group.in_flight
        while not self.memory.attach(sequence, budget, spare, cold_only=cold_only, force=force):
            if cold_only or not self._group.drop_drafts():
                self._blocked = forced
                return 0
        at = _place(self.waiting, sequence)
        for older in self.waiting[:at]:
            older.overtaken += 1
        del self.waiting[at]
        insort(self.running, sequence, key=_rank)
        self._group.admitted(sequence)
        return self._room(sequence, min(sequence.missing, budget))

    def _room(self, sequence: Sequence, count: int) -> int:
        """Makes room for the next tokens of a running sequence; returns for how many.

        Sequences that rank after it may be preempted. Its request fails where all memory is not enough.
        """
        cold_only = self._is_idle_work(sequence)
        while True:
            room = self.memory.extend(sequence, sequence.late + count, cold_only=cold_only) - sequence.late
            if room > 0:
                return room
            if self._group.drop_drafts():
                continue
            # Where it has its whole share of the memory, only its own model's pages are of use.
            of = self._group.schedulers if self.memory.pool.may_grow else [self]
            last = self._group.last_running(of)
            assert last is not None
            scheduler, victim = last
            if scheduler.in_flight:
                self._blocked = True
                return 0
            if victim is not sequence:
                scheduler.preempt(victim)
                continue
            if sum(len(scheduler.running) for scheduler in of) == 1 and not cold_only:
                self._refuse(sequence)
            return 0

    def _wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_rank)
        self._group.waits(self, sequence)

    def is_waiting(self, sequence: Sequence) -> bool:
        """Whether a sequence waits here."""
        at = _place(self.waiting, sequence)
        return at < len(self.waiting) and self.waiting[at] is sequence

    def rank_first(self, sequence: Sequence) -> None:
        """Has a waiting sequence go before all others of its priority, but for those that were raised before it."""
        del self.waiting[_place(self.waiting, sequence)]
        sequence.rank = sequence.rank._replace(urgency=-math.inf, latest=-math.inf)
        insort(self.waiting, sequence, key=_rank)

    @property
    def first(self) -> Sequence | None:
        """The sequence that ranks first, running or waiting."""
        heads = [queue[0] for queue in (self.running, self.waiting) if queue]
        return min(heads, key=_rank, default=None)

    def _latest(self, sequence: Sequence) -> float:
        """When a new sequence must run at the latest for its client's deadline; notes from when on that presses.

        It presses once less than twice the time is left that the sequence will take.
        """
        deadline = sequence.request.client.deadline
        if deadline is None or deadline <= self._group.clock():
            return math.inf
        self._expiry = min(self._expiry, deadline)
        seconds = self.work.seconds(sequence)
        sequence.pressing = -math.inf if seconds is None else deadline - 2 * seconds
        return deadline - (seconds or 0.0)

    def _forget_deadlines(self, now: float) -> None:
        """Has those whose deadlines have passed go with the sequences that have none."""
        self._expiry = math.inf
        for queue in (self.running, self.waiting):
            for sequence in queue:
                deadline = sequence.request.client.deadline
                if deadline is None or not math.isfinite(sequence.rank.latest):
                    continue
                if deadline <= now:
                    sequence.rank, sequence.pressing = sequence.rank._replace(latest=math.inf), math.inf
                else:
                    self._expiry = min(self._expiry, deadline)
            queue.sort(key=_rank)

    def _refuse(self, sequence: Sequence) -> None:
        self.refusals += 1
        sequence.ticket.fail(EngineError(self.too_large(sequence.reached + 1) or "there is no KV memory to be had"))
        self.cancel(sequence.ticket)


class SchedulerGroup:
    """The schedulers whose models share memory.

    Ranks are compared across models, and only sequences that rank after another give way to it. So the running sequence
    that ranks first gets the memory that it needs, or has all there is: models cannot wait for each other for ever.

    `borrowers` have pages for drafts, and give them back when they are called: True where they had some. `clock` is the
    one of deadlines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.schedulers: list[Scheduler] = []
        self.borrowers: list[Callable[[], bool]] = []
        self.clock = clock
        self._arrivals = itertools.count()
        # Waiting sequences, the oldest first, by a number of its own for each entry. Some may wait no longer.
        self._oldest: list[tuple[int, int, int, Scheduler, Sequence]] = []
        self._entries = itertools.count()

    def arrival(self) -> int:
        """The number of the next request."""
        return next(self._arrivals)

    def waits(self, scheduler: Scheduler, sequence: Sequence) -> None:
        """Notes that a sequence waits. Run-ahead work may be outranked for ever."""
        rank = sequence.rank
        if rank.priority == 0:
            heappush(self._oldest, (rank.arrival, rank.sample, next(self._entries), scheduler, sequence))

    def admitted(self, sequence: Sequence) -> None:
        """Notes that a sequence runs. Where the oldest that waits was outranked too often by then, it ranks first.

        So of 33 sequences that are admitted, one at least is the oldest of all, and waits for no others to come.
        """
        self.forget_gone()
        if not self._oldest:
            return
        *_, scheduler, oldest = self._oldest[0]
        if oldest.rank.arrival < sequence.rank.arrival and oldest.rank.standing > sequence.rank.standing:
            oldest.outranked += 1
            if oldest.outranked == _PATIENCE:
                scheduler.rank_first(oldest)

    def forget_gone(self) -> None:
        """Drops those from the front that wait no longer."""
        while self._oldest and not self._oldest[0][3].is_waiting(self._oldest[0][4]):
            heappop(self._oldest)

    def drop_drafts(self) -> bool:
        """Has the pages of drafts given back, which go before any sequence; False where there were none."""
        return any(borrower() for borrower in self.borrowers)

    def first(self) -> Sequence | None:
        """The sequence that ranks first, running or waiting."""
        firsts = (scheduler.first for scheduler in self.schedulers)
        return min((first for first in firsts if first is not None), key=_rank, default=None)

    def last_running(self, of: list[Scheduler] | None = None) -> tuple[Scheduler, Sequence] | None:
        """The running sequence that ranks last, of some schedulers or of all, and its scheduler."""
        lasts = [(scheduler, scheduler.running[-1]) for scheduler in of or self.schedulers if scheduler.running]
        return max(lasts, key=lambda last: last[1].rank, default=None)

    def free_slab(self, reclaimer: Reclaimer) -> bool:
        """Frees a slab for a new model, by preemption if need be; False where every slab holds a scratch page."""
        while not reclaimer.free_slab():
            if self.drop_drafts():
                continue
            last = self.last_running()
            if last is None:
                return False
            scheduler, sequence = last
            scheduler.preempt(sequence)
        return True

    @property
    def in_flight(self) -> bool:
        """Whether a step of any model is in flight."""
        return any(scheduler.in_flight for scheduler in self.schedulers)

    @property
    def running(self) -> int:
        """How many sequences run."""
        return sum(len(scheduler.running) for scheduler in self.schedulers)


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank


def _place(queue: list[Sequence], sequence: Sequence) -> int:
    """The index of a sequence in its queue."""
    return bisect_left(queue, sequence.rank, key=_rank)


def _missing_pages(sequence: Sequence) -> list[int]:
    """The digests of the prompt's whole pages that are still to be computed."""
    return sequence.digests[sequence.published :]
