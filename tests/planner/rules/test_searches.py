"""Random programs: the plan of each rule alone, of all rules and of all but one gives what the naive plan gives.

The engine is scripted, and serves requests in any order. Its texts hold stop strings, and matches that begin in one
piece of a text and end in another.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b

import pytest
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.instance import Services
from qpdsl.executor.runtime.run import InstanceResult, run
from qpdsl.executor.verifiers.score_store import ScoreStore
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS, Solution, StepReads, Verifier
from qpdsl.grammar.diagnostic import QpError
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import optimize, signature
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.rules import RULES
from tests.support.executor.scripted_engine import ALL_CAPABILITIES, ScriptedEngine, scripted_model
from tests.support.planner.lowered import program_of
from tests.support.planner.rules import NAMES
from tests.support.planner.runs import answers, assert_same
from tests.support.planner.searches import random_search

PROGRAMS = 60
# Of those with one rule alone or without one, for each program.
_OTHER_PLANS = 2
_PIECES = ["is ", "12", "7", " * ", "a", "b", "a ", ".", "\n\n", "is 3", "answer ", " b ", "4"]


class Bounded(Verifier):
    """A verifier of steps, whose scores are in [0, 1]."""

    kind = "scripted"

    def lay_out(self, solution: Solution) -> StepReads | None:
        tokens, positions = tuple(self._tokenizer.encode(solution.problem)), []
        for step in solution.steps:
            tokens += tuple(self._tokenizer.encode(f"{step}\n\n"))
            positions.append(len(tokens) - 1)
        return StepReads(tokens, tuple(positions), (1,)) if positions else None

    def score(self, values: Sequence[float]) -> float:
        return round(1 + values[0] / 3, SCORE_DIGITS)


class Unbounded(Bounded):
    """The same with greater scores."""

    @property
    def bounded(self) -> bool:
        return False

    def score(self, values: Sequence[float]) -> float:
        return round(4 + values[0], SCORE_DIGITS)


@cache
def models() -> dict[str, TextModel]:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    return {name: scripted_model(id, tokenizer) for name, id in (("llm", "r"), ("prm", "b"), ("orm", "u"))}


def rank(texts: list[str]) -> list[float]:
    """A row's score depends on all rows."""
    return [sum(other < text for other in texts) / len(texts) for text in texts]


FUNCTIONS = {
    "length": PythonFunction("length", lambda text: len(text) / 100),
    "rank": PythonFunction("rank", rank, batched=True),
}
ENVIRONMENT = Environment(scorers=frozenset(FUNCTIONS))


def script(prompt: str, key: int) -> str:
    chance = random.Random(blake2b(f"{key} {prompt}".encode(), digest_size=8).digest())
    if "Answer with one whole number" in prompt:
        return str(chance.randint(1, 5))
    return "".join(chance.choice(_PIECES) for _ in range(chance.randint(1, 7)))


def result_of(physical: PhysicalPlan, seed: int, order: int) -> InstanceResult:
    """What the plan gives for a seed's problem, where `order` decides about the order in which requests are served."""
    tokenizer = models()["llm"].tokenizer
    engine = ScriptedEngine(tokenizer, script, ALL_CAPABILITIES, random.Random(order))
    verifiers = {"prm": Bounded(tokenizer), "orm": Unbounded(tokenizer)}
    services = Services(engine, models(), verifiers, EventStream(), FUNCTIONS, scores=ScoreStore())

    async def main() -> InstanceResult:
        driver = asyncio.create_task(engine.drive())
        try:
            return await asyncio.wait_for(run(physical, {"problem": f"What is {seed} * 4?", "n": 2}, 0, services), 60)
        finally:
            driver.cancel()

    return asyncio.run(main())


def plans_of(seed: int) -> Iterator[tuple[str, PhysicalPlan]]:
    """Plans of rules with the same rows as the naive one where all columns are read, then where only the value is."""
    naive, chance = checked(seed), random.Random(seed)
    assert naive is not None
    alone = [(f"{name} alone", [other for other in NAMES if other != name]) for name in NAMES]
    without = [(f"without {name}", [name]) for name in NAMES]
    for reads in (None, ()):
        yield f"all rules, reads {reads}", ruled(seed, reads)
        for name, disabled in chance.sample([*alone, *without], _OTHER_PLANS):
            yield f"{name}, reads {reads}", optimize(replace(naive, reads=reads), disabled).plan


@cache
def checked(seed: int) -> PhysicalPlan | None:
    """The naive plan of a seed's program, None where the checker refuses it."""
    try:
        return plan(program_of(random_search(seed), "p", ENVIRONMENT))
    except QpError:
        return None


@cache
def ruled(seed: int, reads: tuple[str, ...] | None) -> PhysicalPlan:
    naive = checked(seed)
    assert naive is not None
    return optimize(replace(naive, reads=reads)).plan


def difference(seed: int) -> str | None:
    """The first plan of a seed's program that does not give what the naive plan gives."""
    naive = checked(seed)
    if naive is None:
        return None
    expected, same = result_of(naive, seed, 0), {signature(replace(naive, reads=reads)) for reads in (None, ())}
    for name, physical in plans_of(seed):
        # How many problems run at once makes no difference to one problem.
        physical = replace(physical, in_flight=None, floor=0)
        if signature(physical) in same:
            continue
        same.add(signature(physical))
        # Far above what the engine has to do, so that samples run ahead where they can.
        result = result_of(replace(physical, floor=64), seed, 1)
        try:
            assert answers([expected]) == answers([result])
            if physical.reads is None:
                assert_same([expected], [result])
        except (AssertionError, KeyError):
            return name
    return None


@pytest.mark.parametrize("part", range(4))
def test_every_plan_gives_what_the_naive_plan_gives(part: int) -> None:
    for seed in range(part, PROGRAMS, 4):
        assert difference(seed) is None, f"{difference(seed)}, seed {seed}:\n{random_search(seed)}"


def test_the_random_programs_meet_every_rule() -> None:
    """Else the test above would show nothing."""
    seeds = [seed for seed in range(PROGRAMS) if checked(seed) is not None]
    met: Counter[str] = Counter()
    for seed in seeds:
        for reads in (None, ()):
            nodes, naive = list(everything(ruled(seed, reads).ops)), checked(seed)
            met.update({rule.name for rule in RULES for node in nodes if rule.stands(node)})
            met["drop_unread"] += naive is not None and len(nodes) < len(list(everything(naive.ops)))
    assert len(seeds) > 0.9 * PROGRAMS
    assert all(met[name] >= 3 for name in NAMES if name != "in_flight"), met
