"""The page accounts and the prefix tree, driven without a model: a fake forward keeps tokens, not KV."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qpdsl.executor.engine.memory import Memory
from qpdsl.executor.engine.request import GenerateRequest, ReadRequest, SamplingParams
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.sequence import Sequence
from qpdsl.executor.engine.ticket import Ticket

PAGE_SIZE = 4
PAGES = 9
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)


class Serving(RuleBasedStateMachine):
    """Requests come, run, are cancelled and preempted; whatever a step reads must be what the sequence wrote there."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[tuple[int, int], int] = {}
        self.memory = Memory(PAGES, PAGE_SIZE, self.copy)
        self.scheduler = Scheduler(self.memory, max_sequences=6, token_budget=10)
        self.tickets: list[Ticket] = []

    def copy(self, source: int, target: int) -> None:
        for at in range(PAGE_SIZE):
            self.slots.pop((target, at), None)
            if (source, at) in self.slots:
                self.slots[target, at] = self.slots[source, at]

    @rule(prompt=PROMPTS, samples=st.integers(1, 4), length=st.integers(1, 12))
    def generate(self, prompt: tuple[int, ...], samples: int, length: int) -> None:
        self.submit(GenerateRequest(prompt, tuple(range(samples)), SamplingParams(), length))

    @rule(tokens=PROMPTS, data=st.data())
    def read(self, tokens: tuple[int, ...], data: st.DataObject) -> None:
        positions = data.draw(st.sets(st.integers(0, len(tokens) - 1), min_size=1))
        self.submit(ReadRequest(tokens, tuple(sorted(positions)), (0,)))

    def submit(self, request: GenerateRequest | ReadRequest) -> None:
        ticket = Ticket(request, self.scheduler.cancel)
        self.scheduler.add(Sequence.of(ticket, request))
        self.tickets.append(ticket)

    @precondition(lambda self: any(not ticket.done for ticket in self.tickets))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        open_tickets = [ticket for ticket in self.tickets if not ticket.done]
        ticket = data.draw(st.sampled_from(open_tickets))
        ticket.cancel()
        self.tickets.remove(ticket)

    @rule(draws=st.lists(st.integers(0, 1), min_size=32, max_size=32))
    def step(self, draws: list[int]) -> None:
        chunks = self.scheduler.schedule()
        assert sum(chunk.count for chunk in chunks) <= self.scheduler.token_budget
        for chunk in chunks:
            sequence = chunk.sequence
            end = sequence.computed + chunk.count
            for at in range(sequence.computed, end):
                page = sequence.pages[at // PAGE_SIZE]
                assert not self.memory.pool.shared(page), "a shared page is written"
                self.slots[page, at % PAGE_SIZE] = sequence.tokens[at]
        for chunk in chunks:
            chunk.sequence.computed += chunk.count
        for chunk in chunks:
            if isinstance(chunk.sequence.request, ReadRequest):
                self.resolve_read(chunk.sequence)
            elif chunk.sequence.missing == 0:
                self.resolve_draw(chunk.sequence, draws)

    def resolve_read(self, sequence: Sequence) -> None:
        assert isinstance(sequence.request, ReadRequest)
        done = [at for at in sequence.request.positions if at < sequence.computed]
        sequence.read.extend([()] * (len(done) - len(sequence.read)))
        if len(done) == len(sequence.request.positions):
            self.scheduler.finish(sequence)
            sequence.ticket.read(sequence)

    def resolve_draw(self, sequence: Sequence, draws: list[int]) -> None:
        drawn = self.scheduler.fork(sequence) if sequence.unforked else [sequence]
        for member in drawn:
            assert isinstance(member.request, GenerateRequest)
            member.tokens.append(draws[(len(member.tokens) + member.index) % len(draws)])
            if len(member.tokens) - member.prompt_length == member.request.max_tokens:
                self.scheduler.finish(member)
                member.ticket.finished(member, member.sample("length"))

    @invariant()
    def pages_hold_what_their_sequences_computed(self) -> None:
        for sequence in self.scheduler.running:
            for at in range(sequence.computed):
                assert self.slots[sequence.pages[at // PAGE_SIZE], at % PAGE_SIZE] == sequence.tokens[at]

    @invariant()
    def the_accounts_balance(self) -> None:
        self.memory.check_integrity([*self.scheduler.running, *self.scheduler.waiting])

    def teardown(self) -> None:
        """Whatever is open ends, in a bounded number of steps, and gives every page back."""
        for _ in range(1500):
            if not self.scheduler.has_work:
                break
            self.step([0, 1] * 16)
            self.the_accounts_balance()
        assert not self.scheduler.has_work
        assert all(ticket.done for ticket in self.tickets)
        self.memory.tree.evict(PAGES)
        assert self.memory.pool.free == PAGES - 1


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_sequence_that_can_never_fit_is_refused_with_the_arithmetic() -> None:
    scheduler = Scheduler(Memory(4, 4, lambda source, target: None), max_sequences=4, token_budget=100)
    request = GenerateRequest(tuple(range(20)), (0,), SamplingParams(), 5)
    ticket = Ticket(request, scheduler.cancel)
    scheduler.add(Sequence.of(ticket, request))
    assert scheduler.schedule() == []
    try:
        ticket.result()
    except Exception as error:
        assert "20 tokens needs 5 KV pages of 4, the budget is 3 pages" in str(error)
    else:
        raise AssertionError("it was served")


def test_eviction_frees_the_least_recently_used_pages_first() -> None:
    memory = Memory(7, 2, lambda source, target: None)
    for first in (10, 20, 30):
        request = ReadRequest((first, 1, 2, 3), (3,), (0,))
        sequence = Sequence.of(Ticket(request, lambda ticket: None), request)
        memory.attach(sequence)
        assert memory.extend(sequence, 4)
        sequence.computed = 4
        memory.retire(sequence)
    memory.tree.match((10, 1, 2, 3), 4)
    assert memory.tree.evict(2) == 2
    assert memory.tree.match((20, 1, 2, 3), 4).length == 0
    assert memory.tree.match((10, 1, 2, 3), 4).length == 4
    assert memory.tree.match((30, 1, 2, 3), 4).length == 4
