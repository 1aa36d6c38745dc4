"""Plans as the choice may make them, all knobs turned at once, against the naive plan of every shipped program.

Rows run as `qpdsl run --input` runs them, so that problems in flight and the floor count: the floor also says when
samples run ahead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.planner.optimize.by_cost import of_operators
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.plan.verify import verify_physical
from qpdsl.planner.rules.in_flight import FLOORS, PROBLEMS
from qpdsl.planner.rules.speculative_expansion import DEPTHS, depths
from qpdsl.planner.values.value import Value
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.runner import outcomes_of
from qpdsl.session.session import Session
from tests.support.executor.programs import arguments, texts
from tests.support.planner.rules import NAMES, lowered
from tests.support.planner.runs import SHIPPED

_SMALL: Mapping[str, Value] = {"n": 3, "depth": 2, "width": 2, "expand": 2, "subtrees": 2, "budget": 3, "ahead": 1}
_NOTES = ["Rosa Haddad is 64 years old. Tags: dancing.", "Alma orders 3 pens. It is urgent."]
_ROWS = 2
# The two problems run one after the other or both at once; the engine has fewer sequences than the floor never, at
# times, always.
_IN_FLIGHT = (1, PROBLEMS[-1])
_FLOORS = (0, 4, FLOORS[-1])
_COMBINATIONS = 2
_SEED = 15

Picks = list[tuple[str, str]]


def outcomes(physical: PhysicalPlan) -> list[Outcome]:
    """What the rows came to, in a session of its own: what one run keeps is not to be found by the next."""
    names = [param.name for param in physical.params]
    open_ = [param.name for param in physical.params if param.default is None]
    small = {name: value for name, value in _SMALL.items() if name in names}
    inputs = _NOTES if "note" in open_ else texts(_ROWS)
    rows = [
        InputRow(str(number), arguments(physical, **small, **dict.fromkeys(open_, text)))
        for number, text in enumerate(inputs)
    ]
    session = Session()
    session.load(physical)
    job = Job(physical, None, 0, with_rows=True)
    return asyncio.run(outcomes_of(session, job, rows))


def combinations(naive: PhysicalPlan, rng: random.Random) -> Iterator[tuple[Picks, PhysicalPlan]]:
    """Plans of all rules, and of some, with every knob turned by chance, and how each was turned."""
    for number in range(_COMBINATIONS):
        disabled = [name for name in NAMES if rng.random() < 0.15] if number else []
        ruled = optimize(naive, disabled).plan
        turned, picks = ruled, [("without", name) for name in disabled]
        for knob in dict.fromkeys(alternative.knob for alternative in of_operators(ruled, ruled)):
            values = [alternative for alternative in of_operators(turned, ruled) if alternative.knob == knob]
            # The last value is the one without what the rules decided, under which other knobs can do less.
            picked = rng.choices(values, [2] * (len(values) - 1) + [1])[0]
            turned = picked.plan
            picks.append((str(knob), picked.value))
        steps = list(depths(turned, ruled))
        if steps:
            picked = rng.choice(steps)
            turned = picked.plan
            picks.append((str(picked.knob), picked.value))
        if turned.in_flight is not None:
            turned = replace(turned, in_flight=rng.choice(_IN_FLIGHT), floor=rng.choice(_FLOORS))
            picks += [("problems at once", str(turned.in_flight)), ("floor", str(turned.floor))]
        yield picks, turned


def seeded(path: Path, program: str | None) -> random.Random:
    return random.Random(f"{_SEED} {path.stem} {program}")


@pytest.mark.parametrize(("path", "program"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_combination_gives_what_the_naive_plan_gives(path: Path, program: str | None) -> None:
    naive = plan(lowered(path, program))
    expected = outcomes(naive)
    rng = seeded(path, program)
    for reads in (None, ()):
        for picks, turned in combinations(replace(naive, reads=reads), rng):
            verify_physical(turned)
            for naive_row, row in zip(expected, outcomes(turned), strict=True):
                assert (row.answer, row.score, row.error) == (naive_row.answer, naive_row.score, naive_row.error), picks
                assert reads is not None or row.rows == naive_row.rows, picks


def test_the_combinations_turn_every_knob_to_every_value() -> None:
    tried: set[tuple[str, str]] = set()
    for path, program in SHIPPED:
        naive, rng = plan(lowered(path, program)), seeded(path, program)
        for reads in (None, ()):
            for picks, _ in combinations(replace(naive, reads=reads), rng):
                tried.update((knob.rpartition(": ")[2].split(" ")[0], value) for knob, value in picks)
    assert tried >= {
        *(("prefixes", value) for value in ("shared", "computed by every sample")),
        *(("texts", value) for value in ("what is new in them", "whole")),
        *(("scores", value) for value in ("kept", "read again")),
        *(("vote", value) for value in ("stops when decided", "waits for all samples")),
        *(("drafts", value) for value in ("ngram", "none")),
        *(("head", value) for value in ("sparse", "dense")),
        *(("forced", value) for value in ("jump", "mask")),
        *(("steps", str(depth)) for depth in DEPTHS),
        *(("problems", str(most)) for most in _IN_FLIGHT),
        *(("floor", str(floor)) for floor in _FLOORS),
    }
