"""What each rule makes of a plan (text fixtures), the driver that runs them, and the page that lists them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.planner.explain.plan import explain
from qpdsl.planner.optimize.optimizer import optimize, signature
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.ops import InvalidPlan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, ScoreStrategy, everything, plainest
from qpdsl.planner.plan.rule import Drawing, Rule
from qpdsl.planner.rules import EFFECTS, RULES
from tests.support.golden import check
from tests.support.paths import ROOT
from tests.support.planner.rules import FIXTURES, NAMES, before_and_after, lowered, rule_of


def rule(name: str, apply: object) -> Rule:
    return Rule(name, "", "exact", "", apply)  # type: ignore[arg-type]


def naive() -> PhysicalPlan:
    return plan(lowered(ROOT / "programs" / "beam_search.qp"), ())


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_what_a_rule_makes_of_a_plan(fixture: Path) -> None:
    before, after = before_and_after(fixture)
    check(fixture.with_suffix(".txt"), f"before {rule_of(fixture)}\n\n{explain(before)}\n\nafter\n\n{explain(after)}")
    assert signature(before) != signature(after)


def test_every_rule_has_a_fixture() -> None:
    assert {rule_of(fixture) for fixture in FIXTURES} == set(NAMES)


def test_the_naive_plan_decides_nothing() -> None:
    for path in (ROOT / "programs").glob("*.qp"):
        for op in everything(plan(lowered(path)).ops):
            assert op.strategy == plainest(op.op) and not op.rules


def test_a_rule_can_be_switched_off() -> None:
    without = optimize(naive(), ["share_prefixes"])
    strategies = [op.strategy for op in everything(without.plan.ops)]
    assert [strategy.share for strategy in strategies if isinstance(strategy, GenerateStrategy)] == [False]
    assert [strategy.share for strategy in strategies if isinstance(strategy, ScoreStrategy)] == [True]
    assert "share_prefixes" not in without.seconds and without.disabled == ("share_prefixes",)
    assert optimize(naive(), NAMES).changes == ()
    with pytest.raises(ValueError, match="no rule no_such"):
        optimize(naive(), ["no_such"])


def test_every_decision_has_words() -> None:
    """By its words it is known whether a decision still stands on an operator."""
    rules = {rule.name: rule for rule in RULES}
    for path in [*(ROOT / "programs").glob("*.qp"), *FIXTURES]:
        naive = plan(lowered(path), ())
        assert not any(rule.stands(node) for node in everything(naive.ops) for rule in RULES)
        for node in everything(optimize(naive).plan.ops):
            assert {name for name, rule in rules.items() if rule.stands(node)} == set(node.rules)


def test_the_driver_records_what_changed_the_plan() -> None:
    optimized = optimize(naive())
    assert [change.rule for change in optimized.changes] == list(optimized.plan.rules)
    assert list(optimized.seconds) == NAMES and all(seconds >= 0 for seconds in optimized.seconds.values())
    score = next(op for op in everything(optimized.plan.ops) if isinstance(op.strategy, ScoreStrategy))
    assert score.rules == ("incremental_score", "score_cache")


def test_planning_again_changes_nothing() -> None:
    for path in (ROOT / "programs").glob("*.qp"):
        ruled = optimize(plan(lowered(path), ())).plan
        assert optimize(ruled).changes == ()


def test_a_repeated_plan_ends_it() -> None:
    up = rule("up", lambda plan: replace(plan, floor=plan.floor + 1) if plan.floor < 2 else plan)
    down = rule("down", lambda plan: replace(plan, floor=0))
    assert [change.rule for change in optimize(naive(), rules=[up, down]).changes] == ["up"]


def test_a_rule_that_never_rests_is_a_fault() -> None:
    with pytest.raises(InvalidPlan, match="do not come to rest; the last to change the plan was `more`"):
        optimize(naive(), rules=[rule("more", lambda plan: replace(plan, floor=plan.floor + 1))])


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (lambda plan: replace(plan, ops=plan.ops[:-1]), "rule `bad`: InvalidPlan: the plan does not end in a return"),
        (lambda plan: replace(plan, ops=plan.ops[1:]), "(Generate) has columns that nothing makes"),
        (lambda plan: replace(plan, ops=(*plan.ops[:1], *plan.ops[2:])), "(TopK) has columns that nothing makes"),
        (lambda plan: replace(plan, in_flight=0), "no problem is in flight"),
        (
            lambda plan: replace(plan, ops=(replace(plan.ops[0], strategy=ScoreStrategy()), *plan.ops[1:])),
            "of another operator's",
        ),
        (lambda plan: 1 / 0, "rule `bad`: ZeroDivisionError"),
    ],
)
def test_a_faulty_rule_fails_loudly(apply: object, message: str) -> None:
    with pytest.raises(InvalidPlan) as error:
        optimize(naive(), rules=[rule("bad", apply)])
    assert message in str(error.value)


def test_the_page_lists_every_rule() -> None:
    path = ROOT / "docs" / "tune" / "cost.md"
    text = path.read_text("utf-8")
    start, end = "<!-- rules -->\n", "<!-- /rules -->"
    rows = [f"| `{rule.name}` | {rule.description} | {rule.equivalence} | {rule.place} |" for rule in RULES]
    table = "\n".join(["| rule | what it does | keeps the plan | its place |", "|---|---|---|---|", *rows, ""])
    before, _, rest = text.partition(start)
    check(path, f"{before}{start}\n{table}\n{end}{rest.partition(end)[2]}".rstrip("\n"))


def test_an_effect_goes_by_the_share_that_runs_counted() -> None:
    ahead, vote = EFFECTS["speculative_expansion"], EFFECTS["decided_vote"]
    assert ahead.share({"run_ahead": 8, "run_ahead_used": 2}.get) == 0.25
    assert vote.share({"given_up": 1, "samples": 3}.get) == 0.25
    never: Counter[str] = Counter()
    assert ahead.share(never.__getitem__) == ahead.usual and vote.share(never.__getitem__) == vote.usual
    drawing = Drawing(sampled=100, steps=50, length=10, longest=20, runs=4, idle=0.5)
    assert (
        ahead.drawing(GenerateStrategy(), drawing, 0.25) == drawing == vote.drawing(GenerateStrategy(), drawing, 0.25)
    )
    running = ahead.drawing(GenerateStrategy(run_ahead=1), drawing, 0.25)
    assert running.sampled == 137.5 and running.steps == 45
    assert vote.drawing(GenerateStrategy(vote="3"), drawing, 0.25).sampled == 75
