"""Random programs with constraints and drafts: every decode plan of their stages gives the naive plan's tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, everything
from qpdsl.session.session import Session
from tests.support.executor.programs import run_all, texts
from tests.support.planner.drafted_programs import decode_plans, drafted_program, lossy_program, random_plan
from tests.support.planner.lowered import program_of
from tests.support.planner.runs import assert_same

# Among them are all kinds of constraints and of drafts.
SEEDS = (*range(10), 15, 17, 19)
LOSSY_SEEDS = range(8)
PROBLEMS = [{"problem": text} for text in texts(1)]
_OTHERS = 2


@pytest.fixture(scope="module")
def session() -> Session:
    return Session()


def naive_of(seed: int) -> PhysicalPlan:
    return plan(program_of(drafted_program(seed), "p"))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_decode_plan_gives_the_same_tokens(seed: int, session: Session) -> None:
    naive = naive_of(seed)
    (expected,) = run_all(naive, PROBLEMS, session=session)
    assert expected.error is None
    for other in (optimize(naive).plan, *(random_plan(naive, 100 * seed + number) for number in range(_OTHERS))):
        assert_same([expected], run_all(other, PROBLEMS, session=session))


@pytest.mark.parametrize("seed", LOSSY_SEEDS)
def test_every_decode_plan_of_a_lossy_program_gives_the_same_tokens(seed: int, session: Session) -> None:
    """What only makes such a plan cheaper is exact relative to the plainest one."""
    naive = plan(program_of(lossy_program(seed), "p"))
    (expected,) = run_all(naive, PROBLEMS, session=session)
    assert expected.error is None
    for other in (optimize(naive).plan, random_plan(naive, seed)):
        assert_same([expected], run_all(other, PROBLEMS, session=session))


def test_the_programs_have_every_kind_of_decode_plan() -> None:
    """Else the test above would show little."""
    met: Counter[str] = Counter()
    for seed in SEEDS:
        for number in range(_OTHERS):
            for node in everything(random_plan(naive_of(seed), 100 * seed + number).ops):
                if isinstance(node.strategy, GenerateStrategy):
                    decode = node.strategy.decode
                    met.update((f"head {decode.head}", f"constraint {decode.constraint}", f"draft {decode.draft}"))
    wanted = {"head dense", "head sparse", "constraint mask", "constraint jump", "constraint tree", "constraint none"}
    assert wanted | {"draft none", "draft ngram", "draft model", "draft early_exit"} <= met.keys()


def test_a_constrained_stage_has_as_many_plans_as_its_parts_have_variants() -> None:
    text = drafted_program(0).split("program")[0] + (
        "program p(problem: text) -> text {\n  chat user=problem\n  generate llm as Person draft slm\n}\n"
    )
    (op,) = [node.op for node in everything(plan(program_of(text, "p")).ops) if isinstance(node.op, ops.Generate)]
    assert len(decode_plans(op)) == 2 * 2 * 2 * 2
