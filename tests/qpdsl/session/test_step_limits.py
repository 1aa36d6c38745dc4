"""How large the engine's steps are and how models divide its memory: as set, or as the plan chose; no token differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.events import EngineStepped, Event
from qpdsl.planner.cost.device import nominal
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.prepare import bind_program, plan_bound
from qpdsl.session.session import Session
from qpdsl.session.settings import Settings
from qpdsl.session.user_cache import write_device
from tests.support.cli import Run
from tests.support.executor.programs import arguments, run_all, shipped, texts
from tests.support.user_cache import own_cache

PRM = "zoo/counting-prm"


def run(plan: PhysicalPlan, **settings: Any) -> tuple[list[object], list[StepReport]]:
    """The rows of three problems, and the steps that made them."""
    steps: list[StepReport] = []

    def see(event: Event) -> None:
        if isinstance(event, EngineStepped):
            steps.append(event.report)

    session = Session(**settings)
    session.events.subscribe(see)
    rows = [arguments(plan, problem=text, width=2, expand=3, depth=4) for text in texts(3)]
    found = run_all(plan, rows, session=session)
    return [[(row.path, row.generated) for row in result.rows] for result in found], steps


def test_no_token_hangs_on_the_limits_and_every_step_keeps_to_them() -> None:
    plan = shipped("beam_search")
    usual, steps = run(plan)
    assert max(step.sequences for step in steps) > 5
    found, steps = run(plan, max_sequences=5, step_tokens=24)
    assert found == usual
    assert max(step.sequences for step in steps) <= 5
    assert max(step.prefill_tokens + step.decode_tokens for step in steps) <= 24
    budget = 6 << 20
    found, steps = run(plan, kv_bytes=budget, kv_shares={"prm": 0.25})
    assert found == usual
    most = {model: max(step.leased_bytes for step in steps if step.model == model) for model in plan.models.values()}
    assert 0 < most[PRM] <= budget / 4


def test_a_part_that_is_too_small_is_refused(qpdsl: Run) -> None:
    args = ("run", "beam_search", "--set", "problem=x", "--kv-memory", "6MiB", "--kv-share", "prm=0.1%")
    ran = qpdsl(*args)
    assert ran.code == Exit.MODEL and "0.1% of the KV budget of 6,291,456 bytes are too little" in ran.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--kv-share", "lm=75%"), "there is no model `lm`"),
        (("--kv-share", "llm=175%"), "`--kv-share` takes NAME=SHARE"),
        (("--kv-share", "llm"), "`--kv-share` takes NAME=SHARE"),
        (("--kv-share", "llm=1", "--kv-share", "llm=0.5"), "`--kv-share` has two parts for `llm`"),
        (("--max-sequences", "0"), "0 is not in the range"),
    ],
)
def test_what_cannot_be_set(qpdsl: Run, given: tuple[str, ...], message: str) -> None:
    for command in (("explain", "beam_search"), ("run", "beam_search", "--set", "problem=x")):
        ran = qpdsl(*command, *given)
        assert ran.code == Exit.USAGE and message in ran.err


def test_a_measured_device_chooses_what_nobody_set_and_the_plan_says_so(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = ("explain", "beam_search")
    assert "steps:" not in qpdsl(*explained).out
    assert "steps: ≤9 sequences, ≤2,048 tokens, sequences as set and tokens as usual" in (
        qpdsl(*explained, "--max-sequences", 9).out
    )
    own_cache(tmp_path / "cache", monkeypatch)
    device = nominal()
    for model in ("zoo/counting", PRM):
        device = replace(device, measured=True, dtype="float32").with_model(model, nominal().profile(model))
    write_device(device)
    surface = json.loads(qpdsl("profile", "--surface", "beam_search", "--json").out)["optimum"]
    shown = json.loads(qpdsl(*explained, "--format", "json").out)
    limits = shown["limits"]
    assert limits["source"] == "by the measured device"
    assert limits["sequences"] >= max(surface["sequences"], min(shown["floor"], 128))
    assert limits["tokens"] == max(surface["token_budget"], limits["sequences"])
    words = "steps: ≤7 sequences, ≤64 tokens, as set; KV memory: prm ≤40%"
    assert words in qpdsl(*explained, "--max-sequences", 7, "--step-tokens", 64, "--kv-share", "prm=40%").out
    settings = Settings(target="beam_search")
    plan = plan_bound(bind_program(settings), settings).plan
    session = Session.of(settings.for_plan(plan))
    assert (session.limits.max_sequences, session.limits.token_budget) == (limits["sequences"], limits["tokens"])
