"""Operators and plans that mean nothing cannot be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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

AT: dict[str, Any] = {"stage": 0, "span": Span(0, 0)}
ONE = ast.Literal(1, span=Span(0, 0))
TEXT = ast.Template(("x",), span=Span(0, 0))
X, NONE = ast.Name("x", span=Span(0, 0)), ast.Name("", span=Span(0, 0))
LLM = ast.ModelRef("llm", False, span=Span(0, 0))
CHOICE = ops.Constraint("choice", '["a", "b"]', "choice")
PROGRAM = (
    "chat user=problem | branch { { generate llm n=2 } { generate llm temperature=0 } }"
    ' | repeat 2 { generate llm stop="x" | score prm } | search puct by logprob simulations=2 { generate llm }'
    " | vote text"
)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ops.Let(X, ONE, stage=-2, span=Span(0, 0)),
        lambda: ops.Chat((), **AT),
        lambda: ops.Constraint("yaml", "x", "x"),  # type: ignore[arg-type]
        lambda: ops.Generate(LLM, ONE, ONE, into=NONE, **AT),
        lambda: ops.Generate(LLM, ONE, ONE, via=ops.Filter(LLM, ONE, span=Span(0, 0)), constraint=CHOICE, **AT),
        lambda: ops.Filter(LLM, span=Span(0, 0)),
        lambda: ops.Filter(LLM, ONE, share=ONE, span=Span(0, 0)),
        lambda: ops.Amortized(layer=ONE, span=Span(0, 0)),
        lambda: ops.StepScore(LLM, reduce="max", **AT),
        lambda: ops.StepScore(LLM, reduce="last", into=NONE, **AT),
        lambda: ops.Judge(LLM, TEXT, 1, 5, reduce="answer", into=NONE, **AT),
        lambda: ops.Judge(LLM, TEXT, 5, 5, reduce="answer", **AT),
        lambda: ops.Judge(LLM, TEXT, 1, 5, reduce="answer", given=TEXT, whole=True, **AT),
        lambda: ops.Prob(LLM, TEXT, (), **AT),
        lambda: ops.Equal(ONE, ONE, "letters", **AT),  # type: ignore[arg-type]
        lambda: ops.LogProb(reduce="max", **AT),
        lambda: ops.DrawScore("entropy", reduce="mean", window=ONE, **AT),
        lambda: ops.PythonScore("", **AT),
        lambda: ops.Extract(NONE, ast.Regex("x", span=Span(0, 0)), **AT),
        lambda: ops.Extract(X, ast.JsonPath(("a",), span=Span(0, 0)), which="last", **AT),
        lambda: ops.PythonExtract(X, "", **AT),
        lambda: ops.Keep(ONE, ONE, per=NONE, **AT),
        lambda: ops.Keep(ONE, ONE, like="beam", **AT),
        lambda: ops.Vote(X, None, "letters", **AT),  # type: ignore[arg-type]
        lambda: ops.Vote(X, ONE, decided=ONE, **AT),
        lambda: ops.Split(ONE, temperature=ONE, **AT),
        lambda: ops.Split(ONE, per=X, **AT),
        lambda: ops.Branch((), **AT),
        lambda: ops.Call("p", (), NONE, name_span=Span(0, 0), **AT),
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
        lambda: replace(operator(ops.Search), body=()),
        lambda: replace(operator(ops.Vote), body=(operator(ops.StepScore),)),
        lambda: replace(operator(ops.Branch), arms=()),
        lambda: replace(operator(ops.Branch), op=ops.If(ONE, (), **AT), arms=operator(ops.Branch).arms * 2),
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
    for name, part in ast.parts(type(op)):
        value = getattr(op, name)
        empty = (
            "" if isinstance(value, str) else NONE if part.kind in ("made", "column") and value is not None else None
        )
        if empty is not None:
            with pytest.raises(InvalidPlan):
                replace(op, **{name: empty})
    with pytest.raises(InvalidPlan):
        replace(op, stage=data.draw(st.integers(max_value=-2)))
