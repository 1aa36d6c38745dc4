"""Running a plan on a scripted engine, with verifiers, functions and a judge, for programs of `searches.py`.

Requests are served in any order. Texts hold stop strings, and matches that begin in one piece and end in another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import cache, partial
from hashlib import blake2b

from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.instance import Services
from qpdsl.executor.runtime.run import InstanceResult, run
from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.executor.sample_memory.sharing_engine import SharingEngine
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS, ScoreStore, Solution, StepReads, Verifier
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan.physical import PhysicalPlan
from tests.support.executor import letters
from tests.support.executor.scripted_engine import ALL_CAPABILITIES, ScriptedEngine, scripted_model

# Letters that take several tokens, in the place of some that take one.
_SPREAD = str.maketrans({".": "🙂", "7": "中", "b": "é", "*": "中"})
_PIECES = ["is ", "12", "7", " * ", "a", "b", "a ", ".", "\n\n", "is 3", "answer ", " b ", "4"]
_IDS = {"llm": "r", "slm": "s", "prm": "b", "orm": "u"}


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
def models(kind: str | None = None) -> dict[str, TextModel]:
    """The models of programs, with a vocabulary of a `kind` of `letters.py`, or that of a built-in model."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting")) if kind is None else letters.tokenizer(kind)
    return {name: scripted_model(id, tokenizer) for name, id in _IDS.items()}


def rank(texts: list[str]) -> list[float]:
    """A row's score depends on all rows."""
    return [sum(other < text for other in texts) / len(texts) for text in texts]


FUNCTIONS = {
    "length": PythonFunction("length", lambda text: len(text) / 100),
    "rank": PythonFunction("rank", rank, "all"),
}
ENVIRONMENT = Environment(scorers=frozenset(FUNCTIONS))


def script(prompt: str, key: int) -> str:
    chance = random.Random(blake2b(f"{key} {prompt}".encode(), digest_size=8).digest())
    if "Answer with one whole number" in prompt:
        return str(chance.randint(1, 5))
    return "".join(chance.choice(_PIECES) for _ in range(chance.randint(1, 7)))


def spread_script(kind: str, prompt: str, key: int) -> str | list[int]:
    """The same, in letters that are spread over tokens, some of them cut; it may go on with one that is begun."""
    text = script(prompt, key)
    if "Answer with one whole number" in prompt:
        return text
    chance = random.Random(text + prompt)
    ids = {data: id for id, data in enumerate(letters.bytes_of(kind)) if data}
    pieces = ["🙂".encode()[2:], "中".encode()[1:], *(piece.encode() for piece in text.translate(_SPREAD))]
    written = b"".join(piece[: chance.choice([1, 2, 9, 9])] for piece in pieces[chance.randrange(3) :])
    return [ids[bytes([byte])] for byte in written]


def result_of(
    physical: PhysicalPlan, seed: int, order: int, memory: SampleMemory | None = None, kind: str | None = None
) -> InstanceResult:
    """What the plan gives for a seed's problem, where `order` decides about the order in which requests are served.

    With a `memory` its samples are shared with what ran before. `kind`: see `models`.
    """
    tokenizer = models(kind)["llm"].tokenizer
    writes = script if kind is None else partial(spread_script, kind)
    scripted = ScriptedEngine(tokenizer, writes, ALL_CAPABILITIES, random.Random(order))
    engine: Engine = scripted if memory is None else SharingEngine(scripted, memory)
    verifiers = {"prm": Bounded(tokenizer), "orm": Unbounded(tokenizer)}
    services = Services(engine, models(kind), verifiers, EventStream(), FUNCTIONS, scores=ScoreStore())

    async def main() -> InstanceResult:
        driver = asyncio.create_task(engine.drive())
        try:
            return await asyncio.wait_for(run(physical, {"problem": f"What is {seed} * 4?", "n": 2}, 0, services), 60)
        finally:
            driver.cancel()

    return asyncio.run(main())
