"""Random programs: the plan of each rule alone, of all rules and of all but one gives what the naive plan gives.

The engine is scripted, and serves requests in any order. Its texts hold stop strings, and matches that begin in one
piece of a text and end in another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.grammar.diagnostic import QpError
from qpdsl.planner.optimize.optimizer import optimize, signature
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.rules import RULES
from tests.support.executor import letters
from tests.support.planner.lowered import program_of
from tests.support.planner.rules import NAMES
from tests.support.planner.runs import answers, assert_same
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import HEADER, random_search

PROGRAMS = 40
# Programs in which a rule once changed an answer, each by what it overlooked.
OVERLOOKED = {
    "a match that begins before the `generate`": """
      generate llm temperature=1.0 n=2 stop=" * "
      generate llm temperature=1.0 n=3
      extract a = /[*][\\s\\S]*b|4|7/
      return a""",
    "`split … by` passes finished rows as one": """
      generate llm temperature=1.0 n=3
      extract a = /[0-9]+/
      split 7 by 1
      vote a""",
    "`keep` closes the groups of finished rows": """
      split 2
      generate llm temperature=1.0 n=3
      extract a = /[0-9]+/
      keep 1 by 1 per group
      vote a""",
    "scores before a vote are read again after it": """
      generate llm temperature=1.0 n=3
      score prm given problem into s
      extract a = /4|7|a|b/
      vote a
      score prm reduce=min given problem into t
      return "{a} {s} {t}\"""",
    "closed rows keep the score that they had": """
      split 2
      generate llm n=2 temperature=1.0 stop="."
      score prm given problem into s
      generate llm temperature=1.0
      keep 1 by 1 per group
      score prm given problem into s
      extract a = /[0-9]+/
      return "{a} {s}\"""",
    "no row comes to the vote": """
      generate llm temperature=0
      where tokens > 9000
      chat user="Again" | generate llm n=3 temperature=1.0
      extract a = /[0-9]+/
      vote a""",
    "a score of a text that has gone on is another": """
      generate llm n=2 temperature=1.0 stop="."
      score prm given problem into s
      generate llm temperature=1.0
      score prm reduce=min given problem into t
      extract a = /[0-9]+/
      return "{a} {s} {t}\"""",
}
# Columns that are made twice, of which a rule leaves out the first.
TWICE = """
      generate llm n=2 temperature=1.0
      extract a = /[0-9]+/
      extract b = /[0-9]+/
      let v = tokens
      extract a = /[a-z]+/
      return b"""
# Of those with one rule alone or without one, for each program.
_OTHER_PLANS = 2
_READS: tuple[tuple[str, ...] | None, ...] = (None, ("a",))


def plans_of(seed: int, *, spread: bool = False) -> Iterator[tuple[str, PhysicalPlan]]:
    """Plans of rules where all columns are read, then where none is but `a`."""
    naive, chance = checked(seed, spread=spread), random.Random(seed)
    assert naive is not None
    alone = [(f"{name} alone", [other for other in NAMES if other != name]) for name in NAMES]
    without = [(f"without {name}", [name]) for name in NAMES]
    for reads in _READS:
        yield f"all rules, reads {reads}", ruled(seed, reads, spread=spread)
        for name, disabled in chance.sample([*alone, *without], _OTHER_PLANS):
            yield f"{name}, reads {reads}", optimize(replace(naive, reads=reads), disabled).plan


@cache
def checked(seed: int, *, spread: bool = False) -> PhysicalPlan | None:
    """The naive plan of a seed's program, None where the checker refuses it."""
    try:
        return plan(program_of(random_search(seed, spread=spread), "p", ENVIRONMENT))
    except QpError:
        return None


@cache
def ruled(seed: int, reads: tuple[str, ...] | None, *, spread: bool = False) -> PhysicalPlan:
    naive = checked(seed, spread=spread)
    assert naive is not None
    return optimize(replace(naive, reads=reads)).plan


def agree(naive: PhysicalPlan, physical: PhysicalPlan, seed: int, kind: str | None = None) -> bool:
    """Whether a plan gives what the naive one does, as far as it is read."""
    expected = result_of(naive, seed, 0, kind=kind)
    # Far above what the engine has to do, so that samples run ahead where they can.
    result = result_of(replace(physical, floor=64), seed, 1, kind=kind)
    # A `repeat` without a round makes no column.
    shown = {"a"} & set(expected.rows[0].columns if expected.rows else ())
    try:
        assert answers([expected]) == answers([result])
        assert_same([expected], [result], None if physical.reads is None else shown)
        assert kind is None or all(row.generated.text == written(row, kind) for row in (*expected.rows, *result.rows))
    except (AssertionError, KeyError):
        return False
    return True


def written(row: Row, kind: str) -> str:
    """The text of a row by the bytes of its tokens, and what was said after them."""
    return letters.text_of(kind, row.generated.tokens) + "".join(text for text, _ in row.generated.said)


def difference(seed: int, kind: str | None = None) -> str | None:
    """The first plan of a seed's program that does not give what the naive plan gives."""
    naive = checked(seed, spread=kind is not None)
    if naive is None:
        return None
    same = {signature(replace(naive, reads=reads)) for reads in _READS}
    for name, physical in plans_of(seed, spread=kind is not None):
        # How many problems run at once makes no difference to one problem.
        physical = replace(physical, in_flight=None, floor=0)
        if signature(physical) not in same and not agree(naive, physical, seed, kind):
            return name
        same.add(signature(physical))
    return None


@pytest.mark.parametrize("part", range(4))
def test_every_plan_gives_what_the_naive_plan_gives(part: int) -> None:
    for seed in range(part, PROGRAMS, 4):
        assert difference(seed) is None, f"{difference(seed)}, seed {seed}:\n{random_search(seed)}"


@pytest.mark.parametrize("kind", letters.KINDS)
@pytest.mark.parametrize("part", range(2))
def test_every_plan_gives_the_same_letters_where_these_are_spread_over_tokens(kind: str, part: int) -> None:
    for seed in range(100 + part, 116, 2):
        found = difference(seed, kind)
        assert found is None, f"{found}, seed {seed}:\n{random_search(seed, spread=True)}"


def naive_of(stages: str) -> PhysicalPlan:
    head = f"{HEADER}program p(problem: text, n: int = 2) -> text like search_and_learn"
    return plan(program_of(f"{head} {{\n  chat user=problem{stages}\n}}", "p", ENVIRONMENT))


def test_columns_have_one_order_under_every_plan() -> None:
    naive = naive_of(TWICE)
    dropped = optimize(naive).plan
    assert len(dropped.ops) < len(naive.ops)
    assert agree(naive, dropped, 0)


@pytest.mark.parametrize("overlooked", OVERLOOKED)
def test_what_rules_once_overlooked(overlooked: str) -> None:
    naive = naive_of(OVERLOOKED[overlooked])
    every = optimize(replace(naive, reads=("a",))).plan
    assert signature(every) != signature(naive)
    assert all(agree(naive, every, seed) for seed in range(12))


# What they decide no program of these meets often enough: their own tests are `test_rules.py`, `test_decode_plans.py`.
_OTHER_TESTS = {
    "prefix_first",
    "speculative_calls",
    "in_flight",
    "jump_forward",
    "draft_tokens",
    "sparse_logits",
    "defer_layers",
    "filter_in_runs",
}


def test_the_random_programs_meet_every_rule() -> None:
    """Else the test above would show nothing."""
    seeds = [seed for seed in range(PROGRAMS) if checked(seed) is not None]
    met: Counter[str] = Counter()
    for seed in seeds:
        for reads in _READS:
            nodes, naive = list(everything(ruled(seed, reads).ops)), checked(seed)
            met.update({rule.name for rule in RULES for node in nodes if rule.stands(node)})
            met["drop_unread"] += naive is not None and len(nodes) < len(list(everything(naive.ops)))
    assert len(seeds) > 0.9 * PROGRAMS
    assert all(met[name] >= 2 for name in NAMES if name not in _OTHER_TESTS), met
