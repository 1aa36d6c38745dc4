"""Sessions that share samples: every shipped program and idiom gives what a session without gives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from qpdsl.arguments import ArgumentError
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
    """A program, and what it is given."""

    name: str
    plan: PhysicalPlan
    values: dict[str, Any]


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
            yield Case(f"{path.parent.name}/{path.stem} n={n}", replace(plan, floor=64), arguments(plan, **given))


@pytest.fixture(scope="module")
def every() -> list[Case]:
    return list(cases())


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


@pytest.fixture(scope="module")
def expected(every: list[Case]) -> list[InstanceResult]:
    """What a session without shared samples gives."""
    return together(session(), every)


def assert_same(cases: list[Case], expected: list[InstanceResult], results: list[InstanceResult]) -> None:
    for case, before, after in zip(cases, expected, results, strict=True):
        for name in ("value", "error", "score", "rows", "support"):
            assert getattr(after, name) == getattr(before, name), (case.name, name)
        # Of samples that were given up, how many tokens there were depends on the clock.
        if not (before.counts.get("given_up") or after.counts.get("given_up")):
            for name in ("prompt_tokens", "sampled_tokens", "near_ties"):
                assert getattr(after, name) == getattr(before, name), (case.name, name)


def test_programs_after_one_another(every: list[Case], expected: list[InstanceResult]) -> None:
    sharing = session(share_samples=True)
    results = [together(sharing, [case])[0] for case in every]
    assert_same(every, expected, results)
    assert sharing.sample_memory is not None
    totals = sharing.sample_memory.totals
    assert totals.saved_tokens > 0.2 * totals.tokens
    assert sum(result.counts.get("saved_tokens", 0) for result in results) <= totals.saved_tokens
    # Once more, backwards: what can be shared is.
    before, asked = totals.saved_tokens, totals.tokens
    again = together(sharing, every[::-1])
    assert_same(every[::-1], expected[::-1], again)
    assert totals.saved_tokens - before == totals.tokens - asked


def test_programs_side_by_side(every: list[Case], expected: list[InstanceResult]) -> None:
    sharing = session(share_samples=True)
    backwards = every[::-1]
    assert_same(backwards, expected[::-1], together(sharing, backwards))
    assert sharing.sample_memory is not None
    assert sharing.sample_memory.totals.shared_samples > 50
    assert sharing.sample_memory.under_way == {}


def test_a_seed_shares_greedy_decoding_alone(every: list[Case]) -> None:
    sharing = session(share_samples=True)
    assert sharing.sample_memory is not None
    sampled = [case for case in every if "best_of_n" in case.name]
    greedy = [case for case in every if case.name.startswith("programs/greedy")]
    together(sharing, sampled + greedy)
    before = sharing.sample_memory.totals.shared_samples
    together(sharing, sampled[:1], seed=1)
    assert sharing.sample_memory.totals.shared_samples == before
    together(sharing, greedy, seed=1)
    assert sharing.sample_memory.totals.shared_samples == before + 1


def test_what_was_drawn_can_be_forgotten(every: list[Case]) -> None:
    sharing, case = session(share_samples=True), every[:1]
    assert sharing.sample_memory is not None
    together(sharing, case)
    assert sharing.sample_memory.bytes > 0
    sharing.forget_samples()
    assert sharing.sample_memory.bytes == 0
    assert not together(sharing, case)[0].counts.get("shared_samples")


@pytest.mark.parametrize(
    "given", [{"dtype": "bfloat16"}, {"device": "cuda"}, {"dtype": "float16", "device": "cuda:1"}], ids=str
)
def test_samples_that_depend_on_the_batch_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="`share_samples` needs samples that are the same in any batch"):
        Session(share_samples=True, **given)


def test_other_sessions_remember_nothing() -> None:
    plain = Session()
    assert plain.sample_memory is None
    plain.forget_samples()
