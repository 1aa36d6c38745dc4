"""Whether the text of a program's answer is known piece by piece: where one `generate` of one row writes it, last."""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import is_same_for_all
from qpdsl.planner.values.value import Value

# Operators that make one row of each row, and leave what was generated in it as it is.
_ROW_BY_ROW = (
    ops.Start,
    ops.Score,
    ops.Judge,
    ops.Prob,
    ops.LogProb,
    ops.DrawScore,
    ops.Equal,
    ops.ValidJson,
    ops.Passes,
    ops.PythonScore,
    ops.Extract,
    ops.PythonExtract,
    ops.Let,
    ops.Peek,
    ops.Ask,
    ops.Call,
)
# Operators that make at most one row of each row.
_NO_MORE_ROWS = (*_ROW_BY_ROW, ops.SetContext, ops.Say, ops.Where, ops.TopK, ops.Order, ops.Distinct, ops.Tournament)
_TEXT = "text"


def text_stage(plan: PhysicalPlan, arguments: Mapping[str, Value]) -> int | None:
    """The number of the stage whose tokens are the answer, as they are generated; None where there is no such stage."""
    *chain, last = plan.ops
    assert isinstance(last.op, ops.Return)
    if not isinstance(last.op.value, ast.Name):
        return None
    while chain and isinstance(chain[-1].op, _ROW_BY_ROW):
        chain.pop()
    if not chain or not isinstance(chain[-1].op, ops.Generate):
        return None
    writer = chain.pop()
    assert isinstance(writer.op, ops.Generate)
    named = last.op.value.id in (_TEXT, writer.op.into)
    # What an earlier stage generated in the same context is part of the text too.
    fresh = bool(chain) and isinstance(chain[-1].op, ops.SetContext)
    if not named or not fresh or _count(writer.op.n, arguments) != 1:
        return None
    return writer.op.stage if _one_row(chain, arguments) else None


def _one_row(chain: list[PhysicalOp], arguments: Mapping[str, Value]) -> bool:
    """Whether a chain ends with one row, or none, whatever happens in it."""
    one = True
    for node in chain:
        match node.op:
            case ops.TopK(k=k, per=None):
                one = one or _count(k, arguments) == 1
            case ops.Vote(per=None) | ops.Join(per=None):
                one = True
            case ops.Generate(n=n):
                one = one and _count(n, arguments) == 1
            case ops.Repeat() | ops.If():
                one = one and all(_one_row(list(block), arguments) for block in node.inside)
            case op:
                one = one and isinstance(op, _NO_MORE_ROWS)
    return one


def _count(expr: ast.Expr, arguments: Mapping[str, Value]) -> Value:
    return evaluate(expr, arguments) if is_same_for_all(expr, arguments) else None
