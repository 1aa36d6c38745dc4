"""`via filter` with shadows: the large model draws some of what the small one did, and nothing else changes."""

from __future__ import annotations

import pytest

from qpdsl.executor.requests.shadow import CHOSEN_SHARE, Shadowing
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.ops import THRESHOLDS
from qpdsl.session.session import Session
from tests.support.executor.programs import run_all, texts
from tests.support.planner.runs import assert_same

HEADER = """model llm = "zoo/counting"
model slm = "zoo/counting-mini"
schema Person { name: text(max_length=9), age: int(0..120) }
"""


def lowered(stages: str) -> LogicalProgram:
    text = HEADER + f"program p(problem: text) -> text {{\n chat user=problem\n {stages}\n return text\n}}"
    return lower(parse_file(Source("test.qp", text)), "p", Environment())


def results(stage: str, shadow: float | None, *, naive: bool = False) -> list[InstanceResult]:
    rows = [{"problem": problem} for problem in texts(2)]
    return run_all(planned(lowered(stage), naive=naive), rows, session=Session(shadow=shadow))


def total(found: list[InstanceResult], name: str) -> int:
    return sum(result.counts.get(name, 0) for result in found)


@pytest.mark.parametrize(
    "stage",
    [
        "generate llm n=2 via filter(slm, 0.3) temperature=1.2 max_tokens=24",
        "generate llm as Person via filter(slm, 0.5, by=margin) temperature=1.1 max_tokens=24",
    ],
)
def test_the_small_models_token_stays(stage: str) -> None:
    none, some, all_of_them = (results(stage, shadow) for shadow in (None, 0.5, 1.0))
    plain = results(stage, 1.0, naive=True)
    for found in (some, all_of_them, plain):
        assert_same(none, found)
    # Where nothing jumps, what a mask forces is drawn as well.
    assert total(plain, "shadowed") == total(plain, "filter_sure") >= total(none, "filter_sure")
    assert total(plain, "differed") == total(all_of_them, "differed")
    assert total(none, "shadowed") == 0 and 0 < total(some, "shadowed") < total(all_of_them, "shadowed")
    assert total(all_of_them, "shadowed") == total(all_of_them, "filter_sure") == total(none, "filter_sure") > 0
    assert 0 < total(all_of_them, "differed") < total(all_of_them, "shadowed")
    assert total(all_of_them, "large_tokens") > total(some, "large_tokens") > total(none, "large_tokens")


def test_a_run_tells_of_every_larger_threshold() -> None:
    stage = "generate llm n=2 via filter(slm, {}) temperature=1.2 max_tokens=30"
    found = results(stage.format(0.0), 1.0)
    counts = [(total(found, f"shadowed_{least}"), total(found, f"differed_{least}")) for least in THRESHOLDS]
    assert counts == sorted(counts, reverse=True) and counts[0][0] <= total(found, "shadowed")
    assert total(results(stage.format("0.3, by=entropy"), 1.0), "shadowed_0.5") == 0


def test_the_planners_own_choice_is_shadowed_unless_somebody_says_otherwise() -> None:
    chosen = frozenset({"3"})
    assert Shadowing(None, chosen).of("3") == CHOSEN_SHARE and Shadowing(None, chosen).of("4") == 0.0
    assert Shadowing(0.0, chosen).of("3") == 0.0 and Shadowing(0.3, chosen).of("4") == 0.3
