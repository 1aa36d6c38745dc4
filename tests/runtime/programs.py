"""Compiling a program's text, and running it on the built-in models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice

from qpdsl.executor.engine.engine import EngineConfig
from qpdsl.executor.runtime.run import Result
from qpdsl.grammar.parse import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.expr import Value
from qpdsl.planner.lower import lower
from qpdsl.planner.physical import PhysicalPlan
from qpdsl.planner.plan import plan
from qpdsl.session import Session
from qpdsl.zoo.task import problems

SHIPPED = ("greedy", "self_consistency", "best_of_n", "weighted_best_of_n", "beam_search")
HEADER = 'model llm = "zoo/counting"\nmodel prm = "zoo/counting-prm"\n'


def compiled(text: str) -> PhysicalPlan:
    return plan(lower(parse_file(Source("test.qp", text)), None))


@cache
def shipped(name: str) -> PhysicalPlan:
    return compiled(files("qpdsl.programs").joinpath(f"{name}.qp").read_text(encoding="utf-8"))


def arguments(plan: PhysicalPlan, **given: Value) -> dict[str, Value]:
    """The given arguments over the program's defaults, which are all plain literals or strings here."""
    defaults = {p.name: getattr(p.default, "value", None) for p in plan.params if p.default is not None}
    return {**defaults, **given}


def texts(count: int) -> list[str]:
    return [problem.text for problem in islice(problems(5, "held-out"), count)]


def run_all(
    plan: PhysicalPlan,
    rows: Sequence[Mapping[str, Value]],
    config: EngineConfig | None = None,
    kv_bytes: int | None = None,
    seed: int = 0,
    session: Session | None = None,
) -> list[Result]:
    """The results of all rows, run side by side."""
    session = session or Session(config=config, kv_bytes=kv_bytes)
    session.load(plan)

    async def main() -> list[Result]:
        async with session.running():
            return list(await asyncio.gather(*(session.run(plan, row, seed, str(i)) for i, row in enumerate(rows))))

    return asyncio.run(main())
