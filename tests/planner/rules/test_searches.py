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

PROGRAMS = 150
PROBLEM = "What is 3 * 4?"
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


def result_of(physical: PhysicalPlan, order: int) -> InstanceResult:
    """What the plan gives, where `order` decides about the order in which requests are served."""
    tokenizer = models()["llm"].tokenizer
    engine = ScriptedEngine(tokenizer, script, ALL_CAPABILITIES, random.Random(order))
    verifiers = {"prm": Bounded(tokenizer), "orm": Unbounded(tokenizer)}
    services = Services(engine, models(), verifiers, EventStream(), FUNCTIONS, scores=ScoreStore())

    async def main() -> InstanceResult:
        driver = asyncio.create_task(engine.drive())
        try:
            return await asyncio.wait_for(run(physical, {"problem": PROBLEM, "n": 2}, 0, services), 60)
        finally:
            driver.cancel()

    return asyncio.run(main())


def plans_of(naive: PhysicalPlan) -> Iterator[tuple[str, PhysicalPlan]]:
    """Plans of rules, each once."""
    seen = {signature(naive)}
    alone = [(f"{name} alone", [other for other in NAMES if other != name]) for name in NAMES]
    without = [(f"without {name}", [name]) for name in NAMES]
    for name, disabled in [("all rules", []), *alone, *without]:
        ruled = optimize(naive, disabled).plan
        # The floor is far above what the engine has to do: samples run ahead where they can.
        if signature(replace(ruled, in_flight=None, floor=0)) not in seen:
            seen.add(signature(replace(ruled, in_flight=None, floor=0)))
            yield name, replace(ruled, floor=64)


def checked(seed: int) -> PhysicalPlan | None:
    """The naive plan of a seed's program, None where the checker refuses it."""
    try:
        return plan(program_of(random_search(seed), "p", ENVIRONMENT))
    except QpError:
        return None


@pytest.mark.parametrize("part", range(5))
def test_every_plan_gives_what_the_naive_plan_gives(part: int) -> None:
    for seed in range(part, PROGRAMS, 5):
        naive = checked(seed)
        if naive is None:
            continue
        expected = result_of(naive, 0)
        for reads in (None, ()):
            for name, physical in plans_of(replace(naive, reads=reads)):
                result = result_of(physical, seed)
                said = f"{name}, reads {reads}, seed {seed}:\n{random_search(seed)}"
                if reads is None:
                    try:
                        assert_same([expected], [result])
                    except (AssertionError, KeyError) as difference:
                        raise AssertionError(said) from difference
                assert answers([expected]) == answers([result]), said


def test_the_random_programs_meet_every_rule() -> None:
    """Else the test above would show nothing."""
    met: Counter[str] = Counter()
    plans = [naive for seed in range(PROGRAMS) if (naive := checked(seed)) is not None]
    for naive in plans:
        for reads in (None, ()):
            ruled = optimize(replace(naive, reads=reads)).plan
            met.update({rule.name for rule in RULES for node in everything(ruled.ops) if rule.stands(node)})
            met["drop_unread"] += len(list(everything(ruled.ops))) < len(list(everything(naive.ops)))
    assert len(plans) > 0.9 * PROGRAMS
    assert all(met[name] >= 5 for name in NAMES if name != "in_flight"), met
