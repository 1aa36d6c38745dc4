"""All programs that come with the product, ready to run side by side, each on a little that takes a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session
from tests.support.executor.programs import arguments, texts
from tests.support.paths import ROOT

PROBLEM = texts(1)[0]
NOTE = "Rosa Haddad is 64 years old. Her tags are dancing and tea."
TURNS = ({"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "The answer is 4."})
# What parameters without a default hold, by their names, and how much of a program is run.
VALUES: dict[str, Any] = {
    "problem": PROBLEM,
    "question": PROBLEM,
    "note": NOTE,
    "draft": "3 * 4 = 12.\n\nThe answer is 12.",
    "reference": "12",
    "solutions": ("The answer is 12.", "The answer is 7."),
    "options": ("11", "12", "13"),
    "topic": "cards",
    "parts": (NOTE, "Ben is 40."),
    "past": TURNS,
    "shots": TURNS,
    "task": "Add two numbers.",
    "tests": "assert add(1, 2) == 3",
    "n": 4,
    "depth": 2,
    "width": 2,
    "expand": 2,
    "subtrees": 2,
}
SMALL = ("n", "depth", "width", "expand", "subtrees")


def likeness(text: list[str]) -> list[float]:
    return [sum(len(set(one) & set(other)) for other in text) / 100 for one in text]


FUNCTIONS = (PythonFunction("likeness", likeness, "all"),)


@dataclass(frozen=True)
class Case:
    """A program, and what it is given; `given` is what a user gives it."""

    name: str
    plan: PhysicalPlan
    values: dict[str, Any]
    path: Path = ROOT
    given: Mapping[str, Any] = field(default_factory=dict)


def cases() -> Iterator[Case]:
    """All programs that come with the product; those that take a width twice, in another width."""
    environment = Environment(scorers=frozenset({"likeness"}))
    paths = [*sorted((ROOT / "programs").glob("*.qp")), *sorted((ROOT / "programs" / "idioms").glob("*/*.qp"))]
    for path in paths:
        file = parse_file(Source(path.name, path.read_text("utf-8")))
        if "strategy {" in path.read_text("utf-8"):
            # It is a family of programs, which are among the others.
            continue
        plan = planned(lower(file, path.stem, replace(environment, files=Files(path.parent))))
        open_ = {param.name for param in plan.params if param.default is None}
        small = {param.name for param in plan.params} & set(SMALL)
        for n in (VALUES["n"], 2) if "n" in small else (None,):
            given = {name: VALUES[name] for name in open_ | small} | ({} if n is None else {"n": n})
            # So that samples run ahead where they can.
            name, ahead = f"{path.parent.name}/{path.stem} n={n}", replace(plan, floor=64)
            yield Case(name, ahead, arguments(plan, **given), path, given)


def session(**rest: Any) -> Session:
    return Session(functions=FUNCTIONS, allow_code=True, **rest)


def together(session: Session, cases: list[Case], seed: int = 0) -> list[InstanceResult]:
    """The results of all, run side by side."""
    for case in cases:
        session.load(case.plan)

    async def main() -> list[InstanceResult]:
        async with session.running():
            return list(await asyncio.gather(*(session.run(case.plan, case.values, seed, case.name) for case in cases)))

    return asyncio.run(main())
