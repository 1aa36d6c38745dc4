"""Random programs, planned and not run: each plan that a rule makes is well formed, and the rules come to rest.

`optimize` verifies the plan after every rule. `QPDSL_PROGRAMS=20000` plans so many programs.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from qpdsl.grammar.diagnostic import QpError
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import everything
from tests.support.planner.drafted_programs import drafted_program, lossy_program
from tests.support.planner.lowered import program_of
from tests.support.planner.rules import NAMES
from tests.support.planner.scripted_runs import ENVIRONMENT
from tests.support.planner.searches import HEADER, random_search

PROGRAMS = int(os.environ.get("QPDSL_PROGRAMS", "100"))
_PARTS = 2
_MADE = [random_search] * 8 + [drafted_program, lossy_program]
_READS: list[tuple[str, ...] | None] = [None, (), (), ("a",), ("s", "text")]


def disabled_sets(chance: random.Random) -> list[list[str]]:
    """What is switched off: nothing, and one rule or all but one."""
    name = chance.choice(NAMES)
    return [[], chance.choice([[name], [other for other in NAMES if other != name]])]


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_rule_makes_plans_that_are_well_formed(part: int) -> None:
    planned = 0
    for seed in range(part, PROGRAMS, _PARTS):
        chance = random.Random(f"plans {seed}")
        text = chance.choice(_MADE)(seed)
        try:
            program = program_of(text, "p", ENVIRONMENT)
        except QpError:
            continue
        for disabled in disabled_sets(chance):
            reads = chance.choice(_READS)
            naive = plan(program, reads)
            try:
                columns = optimize(naive, disabled).plan.ops[-1].columns
            except ops.InvalidPlan as error:
                pytest.fail(f"seed {seed}, reads {reads}, without {disabled}: {error}\n{text}")
            # Rows show their columns in the order of the last operator's.
            assert list(columns) == [name for name in naive.ops[-1].columns if name in columns], (seed, disabled)
        planned += 1
    assert planned > 0.9 * PROGRAMS / _PARTS


def test_the_random_programs_have_blocks_that_nobody_reads() -> None:
    """Else the test above would show little."""
    emptied: Counter[str] = Counter()
    for seed in range(200):
        try:
            program = program_of(random_search(seed), "p", ENVIRONMENT)
        except QpError:
            continue
        ruled = optimize(plan(program, ()), [name for name in NAMES if name != "drop_unread"]).plan
        emptied.update(node.op.operator for node in everything(ruled.ops) if not node.inside)
    assert all(emptied[kind] >= 2 for kind in ("Each", "Repeat", "Peek", "Ask", "Call")), emptied


@pytest.mark.parametrize(
    "block",
    [
        'each el in ["x", "y"] { let b = a }',
        "repeat 2 { let b = a }",
        "repeat 2 gather { let b = a }",
        "repeat 2 { repeat 3 { let b = a } }",
        "peek { let b = a }",
        "ask { let b = a }",
        'each el in ["x", "y"] { score prm given a into s }',
    ],
)
def test_a_block_that_nobody_reads_runs_nothing(block: str) -> None:
    text = f"{HEADER}program p(problem: text) -> text {{\n  chat user=problem\n  generate llm\n  extract a = /x/\n"
    program = program_of(f"{text}  {block}\n  return text\n}}\n", "p", ENVIRONMENT)
    kept = [node.op.operator for node in everything(optimize(plan(program, ())).plan.ops)]
    assert not {"Let", "Extract", "StepScore"} & set(kept)
