"""Decode plans: which variants a `generate` can have, what they keep, and that the executor carries out each one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import VARIANTS, DecodePlan
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.ops import InvalidPlan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan
from tests.support.planner.lowered import program_of

PROGRAM = """\
model llm = "zoo/counting"
model slm = "zoo/counting-mini"
schema Person {{ name: text }}
program p(problem: text) -> text {{
  chat user=problem
  generate llm {clause}
  return text
}}
"""
PLAINEST = {
    "": (DecodePlan(), "exact", "paged decode · dense head"),
    "via amortized(0.9)": (DecodePlan(head="early_exit"), "lossy", "paged decode · early exit"),
    "via filter(slm, 0.9)": (DecodePlan(filter="confidence"), "lossy", "filter · plain"),
    "via contrast(slm)": (DecodePlan(filter="contrast"), "exact", "contrast · both models' logits"),
    'as choice("a", "b")': (DecodePlan(constraint="options"), "exact", "paged prefill · options scored"),
    "as Person": (DecodePlan(constraint="mask"), "exact", "paged decode · dense head · llguidance mask"),
}


def planned(clause: str) -> PhysicalPlan:
    return plan(program_of(PROGRAM.format(clause=clause)))


@pytest.mark.parametrize("clause", PLAINEST)
def test_the_plainest_plan_does_what_the_program_says(clause: str) -> None:
    node = planned(clause).ops[1]
    decode, equivalence, words = PLAINEST[clause]
    assert isinstance(node.strategy, GenerateStrategy)
    assert node.strategy.decode == decode
    assert (node.equivalence, decode.words()) == (equivalence, words)


@pytest.mark.parametrize("clause", PLAINEST)
def test_every_part_of_an_operator_has_a_variant(clause: str) -> None:
    op = planned(clause).ops[1].op
    assert isinstance(op, ops.Generate)
    assert {variant.part for variant in VARIANTS if variant.applies(op)} == {
        "head",
        "constraint",
        "draft",
        "filter",
        "router",
    }


@pytest.mark.parametrize(("clause", "other"), [pair for pair in product(PLAINEST, PLAINEST) if pair[0] != pair[1]])
def test_a_plan_of_another_operator_is_refused(clause: str, other: str) -> None:
    generate = planned(clause).ops[1]
    with pytest.raises(InvalidPlan, match="decode plan"):
        replace(generate, strategy=GenerateStrategy(PLAINEST[other][0]))


def test_a_name_that_no_variant_has_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="there is no head `sparse-ish`"):
        DecodePlan(head="sparse-ish")


def test_the_executor_carries_every_variant_out() -> None:
    from qpdsl.executor.runtime.generate.generate import SAMPLERS

    assert {(variant.part, variant.name) for variant in VARIANTS if not variant.whole} == set(SAMPLERS)
