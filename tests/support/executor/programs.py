"""Compiling a program's text, and running it on the built-in models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice

from family.tasks.counting import problems
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment, Inputs
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.session.session import Session
from tests.support.paths import ROOT

SHIPPED = ("greedy", "self_consistency", "best_of_n", "weighted_best_of_n", "beam_search")
HEADER = 'model llm = "zoo/counting"\nmodel prm = "zoo/counting-prm"\n'


CASES = ROOT / "tests" / "executor" / "runtime" / "cases"


def compiled(text: str, environment: Environment | None = None) -> PhysicalPlan:
    file = parse_file(Source("test.qp", text))
    program = "p" if any(program.name == "p" for program in file.programs) else None
    return planned(lower(file, program, environment or Environment()))


@cache
def case(name: str) -> PhysicalPlan:
    """A program of the folder `cases`, which may name the functions below."""
    environment = Environment(
        Files(CASES),
        frozenset({"length", "overlap"}),
        {"words": "int"},
        inputs={"overlap": Inputs(frozenset({"text", "problem", "row"}))},
    )
    return compiled((CASES / f"{name}.qp").read_text(encoding="utf-8"), environment)


async def length(text: str) -> int:
    return len(text)


def overlap(texts: list[str], problems: list[str]) -> list[float]:
    both = zip(texts, problems, strict=True)
    return [len(set(text.split()) & set(problem.split())) / 7 for text, problem in both]


FUNCTIONS = (
    PythonFunction("length", length),
    PythonFunction("overlap", overlap, "all"),
    PythonFunction("words", lambda text: len(text.split()), kind="extractor", returns="int"),
)


@cache
def shipped(name: str) -> PhysicalPlan:
    return compiled(files("qpdsl.programs").joinpath(f"{name}.qp").read_text(encoding="utf-8"))


def arguments(plan: PhysicalPlan, **values: Value) -> dict[str, Value]:
    """These values over the program's defaults, which are all plain literals or strings here."""
    defaults = {
        parameter.name: getattr(parameter.default, "value", None)
        for parameter in plan.params
        if parameter.default is not None
    }
    return {**defaults, **values}


def texts(count: int) -> list[str]:
    return [problem.text for problem in islice(problems(5, "held-out"), count)]


def run_all(
    plan: PhysicalPlan,
    rows: Sequence[Mapping[str, Value]],
    config: EngineConfig | None = None,
    kv_bytes: int | None = None,
    seed: int = 0,
    session: Session | None = None,
) -> list[InstanceResult]:
    """The results of all rows, run side by side."""
    session = session or Session(config=config, kv_bytes=kv_bytes, functions=FUNCTIONS)
    session.load(plan)

    async def main() -> list[InstanceResult]:
        async with session.running():
            return list(await asyncio.gather(*(session.run(plan, row, seed, str(i)) for i, row in enumerate(rows))))

    return asyncio.run(main())
