"""`via contrast`: the same rows under every plan, and what it has in common with other ways to draw."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.logical import LogicalProgram
from tests.support.cli import Run
from tests.support.executor.programs import run_all, texts
from tests.support.planner.lowered import program_of
from tests.support.planner.runs import assert_same

HEADER = """model llm = "zoo/counting"
model slm = "zoo/counting-mini"
schema Person { name: text(max_length=9), age: int(0..120) }
"""
ROWS = [{"problem": problem} for problem in texts(2)]
STAGES = {
    "plain": "generate llm n=3 via contrast(slm, 0.01) temperature=1.3 max_tokens=16",
    "steps": """repeat 2 until all(finished) {
      generate llm n=2 via contrast(slm, 0.001, beta=1) temperature=1.4 top_p=0.95 stop=[".", "="] max_tokens=12
      keep 2 by logprob
    }""",
    "form": "generate llm n=2 as Person via contrast(slm, 0.05) temperature=1.5 top_k=9 max_tokens=40",
    "limits": """generate llm n=2 via contrast(slm, 0) without=["The", "is"] min_tokens=9 repetition_penalty=1.2
      frequency_penalty=0.3 logit_bias=[{token: " The", bias: 2}] temperature=1.2 max_tokens=16""",
    "figures": """generate llm n=3 via contrast(slm, 0, beta=0.2) temperature=1.3 max_tokens=16
      until confidence(window=2) < 6
    score entropy into open
    score confidence(window=4) into sure""",
}


def lowered(stages: str) -> LogicalProgram:
    return program_of(
        f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n {stages}\n return text\n}}", "p"
    )


def ran(stages: str) -> list[InstanceResult]:
    return run_all(planned(lowered(stages)), ROWS)


def tokens_of(results: list[InstanceResult]) -> list[list[tuple[int, ...]]]:
    return [[row.generated.tokens for row in result.rows] for result in results]


@pytest.mark.parametrize("name", STAGES)
def test_all_its_plans_draw_the_same_tokens(name: str) -> None:
    program, pick = lowered(STAGES[name]), random.Random(name)
    expected = run_all(planned(program, naive=True), ROWS)
    assert all(result.error is None for result in expected)
    tight = EngineConfig(max_sequences=pick.randint(1, 3), token_budget=pick.choice([16, 64]))
    for config, kv_bytes in ((None, None), (tight, 800_000)):
        assert_same(expected, run_all(planned(program), ROWS, config, kv_bytes))


def test_what_contrasts_nothing_is_the_model_itself() -> None:
    options = "n=2 temperature=1.3 max_tokens=30"
    assert tokens_of(ran(f"generate llm via contrast(slm, 0, beta=0) {options}")) == tokens_of(
        ran(f"generate llm {options}")
    )
    contrasted = ran(f"generate llm via contrast(slm, 0.1, beta=0) {options}")
    # At temperature 1 the plausible ids are those that `min_p` leaves.
    assert tokens_of(ran(f"generate llm via contrast(slm, 0.1, beta=0) {options.replace('1.3', '1')}")) == tokens_of(
        ran(f"generate llm min_p=0.1 {options.replace('1.3', '1')}")
    )
    assert tokens_of(contrasted) != tokens_of(ran(f"generate llm via contrast(slm, 0.1, beta=2) {options}"))


def test_each_row_may_have_numbers_of_its_own() -> None:
    sweep = "each b in [0.1, 4] {{ generate llm via contrast(slm, 0.001, beta={}) temperature=0 max_tokens=30 }}".format
    together = tokens_of(ran(sweep("b")))
    for index, beta in enumerate(("0.1", "4")):
        assert [rows[index] for rows in together] == [rows[index] for rows in tokens_of(ran(sweep(beta)))]
    assert any(first != second for first, second in together)


def test_what_a_constraint_forces_is_taken_without_either_model() -> None:
    program = lowered(STAGES["form"])
    naive, ruled = (run_all(planned(program, naive=naive), ROWS) for naive in (True, False))
    assert any(
        json.loads(row.columns["text"])["name"] for result in ruled for row in result.rows if result.error is None
    )
    for before, after in zip(naive, ruled, strict=True):
        assert before.counts["contrast_draws"] == sum(row.columns["tokens"] for row in before.rows)
        assert 0 < after.counts["forced"] == before.counts["contrast_draws"] - after.counts["contrast_draws"]
        assert before.counts["contrast_alone"] - after.counts["contrast_alone"] == after.counts["forced"]


def test_explain_analyze_counts_the_contrasted_tokens(qpdsl: Run, tmp_path: Path) -> None:
    stages = "chat user=problem\n generate llm n=2 via contrast(slm, 1) temperature=0.9 max_tokens=9"
    (tmp_path / "p.qp").write_text(f"{HEADER}program p(problem: text) -> text {{\n {stages}\n}}", encoding="utf-8")
    shown = qpdsl("explain", "--analyze", "--no-statistics", tmp_path / "p.qp", "--set", f"problem={texts(1)[0]}")
    assert "within exact" in shown.out
    # With alpha 1 the likeliest token alone is plausible.
    assert "18 tokens contrasted, 100% with one plausible id" in shown.out
