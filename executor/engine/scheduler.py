"""Which sequences of one model run in the next step, and with how many tokens.

Decode first, then prefill in chunks into what is left of the token budget (Sarathi-Serve's stall-free batching). Where
memory runs out the youngest sequence gives its pages back and is computed again later (vLLM's recompute preemption).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from qpdsl.executor.engine.memory import Memory
from qpdsl.executor.engine.sequence import Sequence
from qpdsl.executor.engine.ticket import EngineError, Ticket


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `count` tokens of a sequence."""

    sequence: Sequence
    count: int


class Scheduler:
    """Waiting and running sequences of one model. `max_sequences` bounds the batch, `token_budget` a step."""

    def __init__(self, memory: Memory, max_sequences: int, token_budget: int) -> None:
        self.memory = memory
        self.max_sequences = max_sequences
        self.token_budget = token_budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, with memory for each. Sequences that can never fit fail their tickets."""
        chunks = self._decodes()
        budget = self.token_budget - len(chunks)
        budget = self._prefills(chunks, budget)
        self._admit(chunks, budget)
        return chunks

    def fork(self, prompt: Sequence) -> list[Sequence]:
        """As many samples of a prefilled prompt as have room in the batch; the others wait, first in the queue."""
        self.memory.publish(prompt)
        room = self.max_sequences - len(self.running) + 1
        samples, rest = prompt.fork(min(prompt.copies, room))
        for sample in samples[1:]:
            self.memory.share(prompt, sample)
        at = self.running.index(prompt) + 1
        self.running[at:at] = samples[1:]
        if rest is not None:
            self.waiting.appendleft(rest)
        return samples

    def finish(self, sequence: Sequence) -> None:
        """Ends a running sequence and keeps its KV for later requests."""
        self.running.remove(sequence)
        self.memory.retire(sequence)

    def cancel(self, ticket: Ticket) -> None:
        """Forgets every sequence of a request and frees its pages."""
        self.waiting = deque(sequence for sequence in self.waiting if sequence.ticket is not ticket)
        for sequence in self.running:
            if sequence.ticket is ticket:
                self.memory.drop(sequence)
        self.running = [sequence for sequence in self.running if sequence.ticket is not ticket]

    def _decodes(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for sequence in [sequence for sequence in self.running if sequence.missing == 1]:
            # Without pages it was preempted a moment ago, to make room for an older one.
            if sequence.pages and self._make_room(sequence, 1):
                chunks.append(Chunk(sequence, 1))
        return chunks

    def _prefills(self, chunks: list[Chunk], budget: int) -> int:
        for sequence in [sequence for sequence in self.running if sequence.missing > 1]:
            count = min(sequence.missing, budget)
            if count < 1:
                break
            if not sequence.pages:
                continue
            fits = self.memory.extend(sequence, count) if chunks else self._make_room(sequence, count)
            if not fits:
                break
            chunks.append(Chunk(sequence, count))
            budget -= count
        return budget

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            if self.running and not self.memory.reserve(len(self.running)):
                break
            self.memory.attach(sequence)
            count = min(sequence.missing, budget)
            if not self.memory.extend(sequence, count):
                self.memory.drop(sequence)
                if self.running:
                    break
                self._refuse(self.waiting.popleft(), count)
                continue
            self.running.append(self.waiting.popleft())
            chunks.append(Chunk(sequence, count))
            budget -= count

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Extends a running sequence, preempting younger ones; fails its request where it is alone and does not fit."""
        while not self.memory.extend(sequence, count):
            victim = self.running[-1]
            if len(self.running) == 1:
                self._refuse(sequence, count)
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.memory.drop(sequence)
        sequence.read.clear()
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _refuse(self, sequence: Sequence, count: int) -> None:
        memory = self.memory
        needs = memory.pages_for(sequence.computed + count)
        sequence.ticket.fail(
            EngineError(
                f"a sequence of {sequence.computed + count} tokens needs {needs} KV pages of {memory.page_size}, "
                f"the budget is {memory.pool.capacity} pages; give more KV memory or shorten it"
            )
        )
        self.cancel(sequence.ticket)
