"""Operators and plans that mean nothing cannot be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.ops import InvalidPlan
from qpdsl.planner.plan.physical import (
    BranchStrategy,
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    everything,
)
from tests.support.planner.lowered import lowered

_MODELS = ("model", "verifier")
AT: dict[str, Any] = {"stage": 0, "span": Span(0, 0)}
ONE = ast.Literal(1, span=Span(0, 0))
TEXT = ast.Template(("x",), span=Span(0, 0))
CHOICE = ops.Constraint("choice", '["a", "b"]', "choice")
PROGRAM = (
    "chat user=problem | branch { { generate llm n=2 } { generate llm temperature=0 } }"
    ' | repeat 2 { generate llm stop="x" | score prm } | vote text'
)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ops.Start(stage=-2, span=Span(0, 0)),
        lambda: ops.SetContext(**AT),
        lambda: ops.SetContext((ast.Turn("user", TEXT, span=Span(0, 0)),), TEXT, **AT),
        lambda: ops.Constraint("yaml", "x", "x"),  # type: ignore[arg-type]
        lambda: ops.Generate("llm", ONE, ONE, into="", **AT),
        lambda: ops.Generate("llm", ONE, ONE, via=ops.Filter("slm", ONE), constraint=CHOICE, **AT),
        lambda: ops.Filter("slm"),
        lambda: ops.Filter("slm", ONE, share=ONE),
        lambda: ops.Amortized(layer=ONE),
        lambda: ops.Score("prm", "max", "score", **AT),  # type: ignore[arg-type]
        lambda: ops.Score("prm", "last", "", **AT),
        lambda: ops.Judge("llm", TEXT, "", 1, 5, **AT),
        lambda: ops.Judge("llm", TEXT, "score", 5, 5, **AT),
        lambda: ops.Judge("llm", TEXT, "score", 1, 5, given=TEXT, whole=True, **AT),
        lambda: ops.Prob("llm", TEXT, (), "score", **AT),
        lambda: ops.Equal(ONE, ONE, "score", "letters", **AT),  # type: ignore[arg-type]
        lambda: ops.LogProb("max", "score", **AT),  # type: ignore[arg-type]
        lambda: ops.DrawScore("entropy", "mean", "score", window=ONE, **AT),
        lambda: ops.PythonScore("", "score", **AT),
        lambda: ops.Extract("", ast.Regex("x", span=Span(0, 0)), **AT),
        lambda: ops.Extract("x", ast.JsonPath(("a",), span=Span(0, 0)), which="last", **AT),
        lambda: ops.PythonExtract("x", "", **AT),
        lambda: ops.TopK(ONE, ONE, per="", **AT),
        lambda: ops.TopK(ONE, ONE, like="beam", **AT),
        lambda: ops.Vote("x", None, "letters", **AT),  # type: ignore[arg-type]
        lambda: ops.Vote("x", ONE, decided=ONE, **AT),
        lambda: ops.Split(ONE, temperature=ONE, **AT),
        lambda: ops.Split(ONE, per="group", **AT),
        lambda: ops.If(ONE, (), **AT),
        lambda: ops.Branch((), **AT),
        lambda: ops.Call("p", lowered(PROGRAM).plan, ONE, "", **AT),
        lambda: GenerateStrategy(run_ahead=-1),
        lambda: BranchStrategy((None, 1)),
        lambda: BranchStrategy((0,)),
    ],
)
def test_an_operator_that_means_nothing(build: Callable[[], object]) -> None:
    with pytest.raises(InvalidPlan):
        build()


def physical() -> PhysicalPlan:
    return plan(lowered(PROGRAM))


def operator(kind: type[ops.Operator]) -> PhysicalOp:
    return next(node for node in everything(physical().ops) if isinstance(node.op, kind))


@pytest.mark.parametrize(
    "build",
    [
        lambda: replace(operator(ops.Generate), strategy=ScoreStrategy()),
        lambda: replace(operator(ops.Vote), strategy=None),
        lambda: replace(operator(ops.SetContext), strategy=GenerateStrategy()),
        lambda: replace(operator(ops.Repeat), body=()),
        lambda: replace(operator(ops.Vote), body=(operator(ops.Score),)),
        lambda: replace(operator(ops.Branch), arms=()),
        lambda: replace(operator(ops.Branch), strategy=BranchStrategy((None,))),
        lambda: replace(physical(), ops=()),
        lambda: replace(physical(), ops=physical().ops[:-1]),
        lambda: replace(physical(), in_flight=0),
        lambda: replace(physical(), floor=-1),
    ],
)
def test_a_plan_that_means_nothing(build: Callable[[], object]) -> None:
    with pytest.raises(InvalidPlan):
        build()


@given(st.data())
def test_no_column_or_word_of_an_operator_is_empty(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from([node.op for node in everything(physical().ops)]))
    names = [part.name for part in fields(op) if isinstance(getattr(op, part.name), str) and part.name not in _MODELS]
    for name in names:
        with pytest.raises(InvalidPlan):
            replace(op, **{name: ""})
    with pytest.raises(InvalidPlan):
        replace(op, stage=data.draw(st.integers(max_value=-2)))
