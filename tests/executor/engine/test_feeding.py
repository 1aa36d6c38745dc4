"""Steps that are fed on a device come to what they do one after the other, and leave nothing of what is dropped."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch

from qpdsl.executor.engine.feeding import Feeding
from qpdsl.executor.engine.launched_step import LaunchedStep
from qpdsl.executor.engine.memory.sequence import Chunk
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step import backends
from qpdsl.executor.engine.step.backends import ForwardOutput, KernelBackend
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, Request, Sample, SamplingParams
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.session.session import Session
from tests.support.executor.fake_device import fake_device
from tests.support.executor.host_reads import HostReads
from tests.support.executor.models import VOCABULARY, engine_of, random_model, served
from tests.support.executor.pretend_cuda import pretend_cuda
from tests.support.executor.programs import arguments, run_all, shipped, texts
from tests.support.executor.replayed import record
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT
from tests.support.planner.searches import HEADER, random_search

SAMPLING = [SamplingParams(0.0), SamplingParams(0.8), SamplingParams(1.3)]


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)


@cache
def model(name: str = "llama") -> PagedModel:
    return PagedModel(random_model(name), kernels=True)


@dataclass
class Fed:
    """Steps that were fed, and rows of them that were dropped."""

    steps: int = 0
    dropped: int = 0


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> Fed:
    counts = Fed()
    forward, settle = Feeding.forward, Feeding.settle

    def counted(self: Feeding, chunks: list[Chunk], feeder: LaunchedStep) -> ForwardOutput:
        counts.steps += 1
        return forward(self, chunks, feeder)

    def settled(self: Feeding, step: LaunchedStep) -> None:
        before = len(step.chunks)
        settle(self, step)
        counts.dropped += before - len(step.chunks)

    monkeypatch.setattr(Feeding, "forward", counted)
    monkeypatch.setattr(Feeding, "settle", settled)
    return counts


class StopAfter:
    """A watch that ends a sample at a token, once it has so many."""

    def __init__(self, token: int, least: int) -> None:
        self.token, self.least, self.seen = token, least, list[int]()

    def push(self, token: int) -> bool:
        self.seen.append(token)
        return len(self.seen) >= self.least and token % self.token == 0


@dataclass
class Case:
    """Requests, when each comes and is given up, in steps, and in what engine."""

    requests: list[Request]
    comes: list[int]
    goes: dict[int, int]
    pages: int
    config: EngineConfig
    reports: list[StepReport] = field(default_factory=list)

    @classmethod
    def of(cls, seed: int) -> Case:
        chance = random.Random(seed)

        def some(least: int, most: int) -> tuple[int, ...]:
            return tuple(chance.randrange(1, VOCABULARY) for _ in range(chance.randint(least, most)))

        stem, count = some(40, 40), chance.randint(2, 7)
        requests: list[Request] = []
        for number in range(count):
            prompt = stem[: chance.choice([0, 16, 33])] + some(1, 5)
            if chance.random() < 0.1:
                requests.append(ReadRequest(prompt, (len(prompt) - 1,), (3, 4)))
                continue
            keys = tuple(range(10 * number, 10 * number + chance.choice([1, 1, 2, 4])))
            request = GenerateRequest(prompt, keys, chance.choice(SAMPLING), chance.randint(1, 40))
            if chance.random() < 0.7:
                request = replace(request, eos=frozenset(range(0, VOCABULARY, chance.choice([5, 12, 30]))))
            if chance.random() < 0.3:
                token, least = chance.choice([4, 9]), chance.randint(1, 9)
                request = replace(request, watch=lambda index, token=token, least=least: StopAfter(token, least))
            if chance.random() < 0.1:
                request = replace(request, sampling=SamplingParams(1.0, top_k=9))
            requests.append(replace(request, priority=int(chance.random() < 0.2), logprobs=chance.random() < 0.8))
        comes = [0 if chance.random() < 0.6 else chance.randint(1, 20) for _ in requests]
        goes = {number: chance.randint(1, 30) for number in range(count) if chance.random() < 0.15}
        config = EngineConfig(
            max_sequences=chance.choice([2, 4, 128]),
            token_budget=chance.choice([16, 2048]),
            deterministic=chance.random() < 0.2,
        )
        return cls(requests, comes, goes, chance.choice([8, 400, 400]), config)

    def served(self, *, overlap: bool) -> tuple[list[object], list[float], PagedEngine]:
        """What the requests come to that are not given up: what is drawn, and the numbers that a batch may round."""
        self.reports = []
        engine = engine_of(model(), self.pages, replace(self.config, overlap=overlap), self.reports.append)
        tickets: dict[int, Ticket] = {}
        step = 0
        while engine.has_work or len(tickets) < len(self.requests):
            for number, request in enumerate(self.requests):
                if self.comes[number] <= step and number not in tickets:
                    tickets[number] = engine.submit("m", request)
                if self.goes.get(number) == step and number in tickets:
                    tickets[number].cancel()
            if engine.has_work:
                engine.step()
                engine.check_integrity()
            step += 1
        stays = [tickets[number].result() for number in range(len(tickets)) if number not in self.goes]
        samples = [sample for completion in stays for sample in completion.samples]
        numbers = [logit for completion in stays for row in completion.logits for logit in row]
        numbers += [logprob for sample in samples for logprob in sample.logprobs]
        return [_drawn(sample) for sample in samples], numbers, engine


def _drawn(sample: Sample) -> object:
    watched = None if sample.watch is None else sample.watch.seen  # type: ignore[attr-defined]
    return sample.tokens, sample.finish, sample.steps.draws, sample.steps.rounds, watched


def test_random_requests_come_to_the_same(fed: Fed) -> None:
    """Rows of all lengths, ends at tokens and texts, fan-outs, requests given up, memory in which rows give way."""
    preemptions = 0
    for seed in range(25):
        case = Case.of(seed)
        with fake_device() as lane:
            wanted, numbers, other = case.served(overlap=False)
            preemptions += case.reports[-1].preemptions
            found, near, engine = case.served(overlap=True)
            assert lane.under_way == 0
        assert found == wanted and near == pytest.approx(numbers, abs=1e-3), seed
        memory, alone = (own.runner("m").scheduler.memory for own in (engine, other))
        assert memory.pool.held == len(memory.tree), seed
        if not (case.goes or case.reports[-1].evictions):
            assert (len(memory.tree), memory.tree.tokens) == (len(alone.tree), alone.tree.tokens), seed
    assert fed.steps > 100 and fed.dropped > 20 and preemptions > 3


def plain(key: int, length: int, samples: int = 1, eos: frozenset[int] = frozenset()) -> GenerateRequest:
    return GenerateRequest((5, 6, 7, key), tuple(range(samples)), SamplingParams(1.0), length, eos)


def test_no_launch_of_a_decode_step_waits_for_the_device(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a step is launched the one before it was not waited for, and nothing else is but each step once."""
    waits_at: list[int] = []
    launch = ModelRunner.launch
    with fake_device() as lane:

        def launched(runner: ModelRunner, *args: Any) -> LaunchedStep:
            waits_at.append(lane.waits)
            return launch(runner, *args)

        monkeypatch.setattr(ModelRunner, "launch", launched)
        engine = engine_of(model())
        tickets = [engine.submit("m", plain(key, 20 + key, samples=2)) for key in range(3)]
        with HostReads() as reads:
            while engine.has_work:
                engine.step()
        assert lane.waits == 22
    # The prompts' step is collected before the first decode step is launched, and that one feeds the next.
    assert waits_at == [0, 1, *range(1, 21)]
    assert dict(reads.lines) == {} and fed == Fed(20, 0) and all(ticket.done for ticket in tickets)


def test_nothing_is_told_of_rows_that_are_dropped(fed: Fed) -> None:
    """Where the last samples end by surprise, neither is of the step that had only these."""
    found: list[list[object]] = []
    for overlap in (False, True):
        reports: list[StepReport] = []
        with fake_device():
            engine = engine_of(model(), config=EngineConfig(overlap=overlap), on_step=reports.append)
            eos = frozenset(range(0, VOCABULARY, 9))
            tickets = [engine.submit("m", plain(key, 200, samples=3, eos=eos)) for key in range(4)]
            while engine.has_work:
                engine.step()
        assert all(sample.finish == "eos" for ticket in tickets for sample in ticket.result().samples)
        assert sum(ticket.seconds for ticket in tickets) == pytest.approx(sum(report.seconds for report in reports))
        rows = [(own.sequences, own.prefill_tokens, own.decode_tokens, own.running) for own in reports]
        tree = engine.runner("m").scheduler.memory.tree
        found.append([rows, reports[-1].pages_held, len(tree), tree.tokens])
    assert found[0] == found[1] and fed.dropped >= 8


def test_what_is_given_up_while_it_is_fed_holds_nothing(fed: Fed) -> None:
    with fake_device():
        engine = engine_of(model())
        ticket, other = engine.submit("m", plain(1, 60, samples=3)), engine.submit("m", plain(2, 30))
        for _ in range(9):
            engine.step()
        assert fed.steps == 8
        ticket.cancel()
        held = engine.busy("m")
        engine.step()
        assert engine.busy("m") == held - 3 and fed.steps == 8, "what follows has other samples"
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        assert not ticket.done and len(other.result().samples[0].tokens) == 30
        memory = engine.runner("m").scheduler.memory
        assert memory.pool.held == len(memory.tree) and fed.steps > 20


def test_logits_that_are_not_finite_fail_a_request_and_feed_no_other() -> None:
    broken = random_model("llama")
    model = PagedModel(broken, kernels=True)
    request = plain(1, 40)
    with fake_device():
        (alone,) = served(engine_of(model), (request,))
        token = alone[0].tokens[5]
        with torch.no_grad():
            broken.get_input_embeddings().weight[token] = float("nan")
        engine = engine_of(model)
        ticket, other = engine.submit("m", request), engine.submit("m", plain(2, 3))
        while engine.has_work:
            engine.step()
            engine.check_integrity()
    with pytest.raises(EngineError, match="not finite"):
        ticket.result()
    assert other.done


@pytest.mark.parametrize("deterministic", [False, True])
def test_captured_steps_are_fed(deterministic: bool, fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        backends, "kernel_backend", lambda model, cache, rows, graphs: KernelBackend(model, cache, rows, record)
    )
    batch = tuple(plain(key, 12, samples=3, eos=frozenset({3, 40, 77})) for key in range(4))
    config = EngineConfig(deterministic=deterministic)
    found = []
    with fake_device():
        for overlap in (False, True):
            engine = engine_of(model(), config=replace(config, overlap=overlap))
            found.append([[sample.tokens for sample in samples] for samples in served(engine, batch)])
            backend = engine.runner("m").backend
            assert isinstance(backend, KernelBackend) and backend.graphs is not None and backend.graphs.replays > 3
    assert found[0] == found[1] and fed.steps >= 8 and fed.dropped > 0


ZOO = """model llm = "zoo/counting"
model slm = "zoo/counting-mini"
model prm = "zoo/counting-prm"
model orm = "zoo/counting-prm"
"""


@pytest.mark.parametrize("seed", [None, 11])
def test_programs_come_to_what_they_do_on_a_cpu(seed: int | None, fed: Fed) -> None:
    """Best of n, and random programs with verifiers, stops, calls and loops, on a device that mixes no tensors."""
    text = "" if seed is None else random_search(seed).replace(HEADER, ZOO)
    plan = shipped("best_of_n") if seed is None else planned(program_of(text, "p", ENVIRONMENT))
    rows = [arguments(plan, problem=problem, n=3) for problem in texts(1)]
    wanted = run_all(plan, rows, session=Session())
    with pretend_cuda():
        found = run_all(plan, rows, session=Session(device="cuda", dtype="float32", kv_bytes="16MiB"))
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.value, mine.error) == (theirs.value, theirs.error)
        assert [row.generated.text for row in mine.rows] == [row.generated.text for row in theirs.rows]
    assert fed.steps > 10
