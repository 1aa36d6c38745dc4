"""Rules are proved by running the plan before and after each on two small models; no exact plan changes a token."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.executor.events.events import Event, Expanded, Selected
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.rules.speculative_expansion import depths
from qpdsl.session.session import Session
from tests.support.executor.programs import arguments, run_all, texts
from tests.support.planner.rules import FIXTURES, NAMES, before_and_after, lowered, rule_of
from tests.support.planner.runs import SHIPPED, answers, assert_same, run_plan


def over(physical: PhysicalPlan, model: str) -> PhysicalPlan:
    return replace(physical, models={**physical.models, "llm": model})


@pytest.mark.parametrize("model", ["zoo/counting", "zoo/counting-mini"])
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_the_plan_after_a_rule_gives_what_the_one_before_it_did(fixture: Path, model: str) -> None:
    (before, less), (after, more) = (run_plan(over(plan, model)) for plan in before_and_after(fixture))
    name = rule_of(fixture)
    columns = {"first", "answer"} & set(after[0].rows[0].columns if after[0].rows else ())
    if name == "unread_logprobs":
        columns = set(after[0].rows[0].columns) - {"logprob"}
    elif name not in ("stop_when_matched", "decided_vote"):
        columns = None
    assert_same(before, after, columns)
    others = ("collapse_greedy", "stop_when_matched", "merge_equal", "drop_unread")
    if name not in ("decided_vote", "score_ahead", *others):
        assert [result.near_ties for result in before] == [result.near_ties for result in after]
    if model == "zoo/counting":
        assert _spares(name, less, more), (name, less, more)


def _spares(rule: str, before: Counter[str], after: Counter[str]) -> bool:
    """Whether the rule did what it is for."""
    match rule:
        case "collapse_greedy" | "stop_when_matched":
            return after["sampled"] < before["sampled"]
        case "drop_unread" | "merge_equal" | "share_prefixes":
            return after["prompt"] - after["cached"] < before["prompt"] - before["cached"]
        case "score_ahead":
            return after["given_up"] > before["given_up"] and after["sampled"] < before["sampled"]
        case "incremental_score":
            return after["cached"] > before["cached"]
        case "score_cache":
            return after["steps_known"] > before["steps_known"]
        case "speculative_expansion":
            return after["run_ahead_used"] > 0
        case "speculative_calls":
            return after["saved_calls"] > 0
        case "jump_forward":
            return after["forced"] > 0 and after["draws"] < before["draws"]
        case "draft_tokens":
            return after["accepted"] > 0 and after["rounds"] < after["draws"]
        case "defer_layers":
            return after["skipped"] > 0 and after["exits"] == before["exits"]
        case "filter_in_runs":
            return after["large_draws"] == before["large_draws"] and after["filter_sure"] == before["filter_sure"]
    return True


@pytest.mark.parametrize(("path", "program"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_plan_of_a_shipped_program_gives_the_same(path: Path, program: str | None) -> None:
    """All rules, none, and each switched off, where all columns are read and where only the answer is."""
    naive = plan(lowered(path, program))
    expected, _ = run_plan(naive, 1)
    for value in distinct([optimize(naive, [name] if name else []).plan for name in [None, *NAMES]]):
        results, _ = run_plan(value, 1)
        assert_same(expected, results)
    few = replace(naive, reads=())
    names = (None, "drop_unread", "stop_when_matched", "share_prefixes")
    for value in distinct([optimize(few, [name] if name else []).plan for name in names]):
        results, _ = run_plan(value, 1)
        assert answers(results) == answers(expected)


def distinct(plans: list[PhysicalPlan]) -> list[PhysicalPlan]:
    """Without those that run as one before them does: what is switched off changed nothing there."""
    bare = [replace(value, rules=()) for value in plans]
    return [value for index, value in enumerate(plans) if bare[index] not in bare[:index]]


def test_votes_that_are_decided_give_up_what_is_left() -> None:
    for name in ("decided_vote", "decided_vote_weighed"):
        before, after = before_and_after(Path(__file__).with_name(f"{name}.qp"))
        expected, plain = run_plan(before, 12)
        results, counts = run_plan(after, 12)
        assert answers(results) == answers(expected)
        assert counts["given_up"] > 0 and counts["sampled"] < plain["sampled"]


def test_whoever_watches_is_told_the_candidates_of_a_decided_vote() -> None:
    _, after = before_and_after(Path(__file__).with_name("decided_vote.qp"))
    session, seen = Session(), list[Event]()
    session.events.subscribe(seen.append, details=True)
    named = {param.name for param in after.params}
    (result,) = run_all(
        after, [arguments(after, **({"n": 6} if "n" in named else {}), problem=texts(1)[0])], session=session
    )
    shown = [candidate.path for event in seen if isinstance(event, Expanded) for candidate in event.candidates]
    (chosen,) = [event for event in seen if isinstance(event, Selected)]
    assert chosen.kept == (result.rows[0].path,) and set(chosen.kept) | set(chosen.dropped) <= set(shown)
    assert len(shown) == len(set(shown))


def test_what_runs_ahead_further_is_the_same() -> None:
    _, after = before_and_after(Path(__file__).with_name("speculative_expansion.qp"))

    plans = {alternative.value: alternative.plan for alternative in depths(after, after)}
    expected, _ = run_plan(plans["0"], 3)
    for steps in ("1", "3"):
        results, counts = run_plan(plans[steps], 3)
        assert_same(expected, results)
        assert counts["run_ahead"] >= counts["run_ahead_used"] > 0


def test_the_plans_differ_in_nothing_that_is_not_decided() -> None:
    for fixture in FIXTURES:
        before, after = before_and_after(fixture)
        ids = {op.id for op in everything(before.ops)}
        assert {op.id for op in everything(after.ops)} <= ids
