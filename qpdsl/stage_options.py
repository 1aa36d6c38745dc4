"""Stage options that arguments put out of range, found before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qpdsl.arguments import KINDS, ArgumentError
from qpdsl.errors import UsageError
from qpdsl.grammar import ast
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.options import LARGEST, RANGES
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.reads import is_same_for_all
from qpdsl.planner.values.value import Value, format_value


def check_options(plan: PhysicalPlan, values: Mapping[str, Value]) -> None:
    """Checks every stage option that reads no column, and no parameter but those in `values`. Raises ArgumentError."""
    for name, expr in _options(plan.ops):
        if not is_same_for_all(expr, values):
            continue
        value = evaluate(expr, values)
        if not _holds(name, value):
            allowed, text = RANGES[name], format_expr(expr)
            large = isinstance(value, int | float) and abs(value) > LARGEST
            shown = "one this large" if large else format_value(value)
            whose = "" if text == name else f", the value of `{text}`"
            raise ArgumentError(f"`{name}` takes {KINDS[allowed.type]} of {allowed}, not {shown}{whose}")


def check_code(plan: PhysicalPlan, *, allowed: bool) -> None:
    """Raises UsageError where a plan runs code that a model writes, unless the caller has `allowed` it."""
    if not allowed and any(isinstance(node.op, ops.Passes) for node in everything(plan.ops)):
        help = "`--allow-code` allows it, in Python `qp.using(allow_code=True)`; it runs in a sandbox, with limits"
        raise UsageError(f"`{plan.name}` runs code that a model writes, by `score passes(…)`", help)


def _holds(name: str, value: Value) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
        return False
    return RANGES[name].holds(value)


def _options(nodes: tuple[PhysicalOp, ...]) -> Iterator[tuple[str, ast.Expr]]:
    for node in nodes:
        match node.op:
            case ops.Generate() as op:
                for name in ("n", "temperature", "top_p", "top_k", "min_p", "max_tokens"):
                    expr = getattr(op, name)
                    if expr is not None:
                        yield name, expr
                if op.via is not None:
                    yield from op.via.numbers
            case ops.TopK(k=k):
                yield "keep", k
            case ops.Split(count=count, temperature=temperature):
                yield "split", count
                if temperature is not None:
                    yield "split temperature", temperature
            case ops.Repeat(limit=limit):
                yield "repeat", limit
            case ops.DrawScore(window=window) if window is not None:
                yield "window", window
            case ops.Search() as op:
                yield from op.options
            case ops.Passes(timeout=timeout) if timeout is not None:
                yield "timeout", timeout
            case ops.Vote(decided=decided) if decided is not None:
                yield "decided", decided
        yield from _options(node.body)
        for arm in node.arms:
            yield from _options(arm)
