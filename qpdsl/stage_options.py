"""Stage options that arguments put out of range, found before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qpdsl.arguments import KINDS, ArgumentError
from qpdsl.errors import UsageError
from qpdsl.executor.runtime.sandbox.permission import UNCONFINED, CodePermission
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import made_column
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.options import LARGEST, RANGES
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.reads import GENERATED, Columns, is_same_for_all, outlives_rows, reads, state_access
from qpdsl.planner.values.value import Value, format_value


def check_options(plan: PhysicalPlan, values: Mapping[str, Value]) -> None:
    """Checks every stage option that reads no column, and no parameter but those in `values`. Raises ArgumentError."""
    numbers = (found for node in everything(plan.ops) for found in ast.values(node.op))
    for name, expr in ((part.limit, expr) for expr, part, _ in numbers if part.range is not None):
        if not is_same_for_all(expr, values):
            continue
        value = evaluate(expr, values)
        if not _holds(name, value):
            allowed, text = RANGES[name], format_expr(expr)
            large = isinstance(value, int | float) and abs(value) > LARGEST
            shown = "one this large" if large else format_value(value)
            whose = "" if text == name else f", the value of `{text}`"
            raise ArgumentError(f"`{name}` takes {KINDS[allowed.type]} of {allowed}, not {shown}{whose}")
    _check_rounds(plan, values)


def _check_rounds(plan: PhysicalPlan, values: Mapping[str, Value]) -> None:
    """Refuses a `repeat` of no rounds where something reads what only its rounds make. Raises ArgumentError.

    A program with an `else` for its result, and one whose result may be none, says what it gives then.
    """
    nodes = list(everything(plan.ops))
    results = [node.op for node in nodes if isinstance(node.op, ops.Return)]
    if any(result.optional or result.otherwise is not None for result in results):
        return
    for loop in nodes:
        op = loop.op
        if not isinstance(op, ops.Repeat) or not is_same_for_all(op.limit, values) or evaluate(op.limit, values) != 0:
            continue
        none = f"0 rounds of `repeat {format_expr(op.limit)}"
        if op.gather is not None and not all(outlives_rows(result.value, values) for result in results):
            raise ArgumentError(f"{none} gather` leave no row to return")
        inside = list(everything(loop.body))
        others = [node for node in nodes if node is not loop and not any(node is inner for inner in inside)]
        own = _made(inside) - _made(others)
        for node in others:
            if read := sorted((reads(node) | _generated(node.op)) & own):
                word = type(node.op).word
                raise ArgumentError(f"{none}` make no `{read[0]}`, which `{word}` reads, and nothing else makes it")


def _made(nodes: Iterable[PhysicalOp]) -> Columns:
    """The columns that operators make, each by itself: of what is generated `text` alone."""
    made = {column for node in nodes if (column := made_column(node.op)) is not None}
    return frozenset(made | {"text" for node in nodes if isinstance(node.op, ops.Generate | ops.Say)})


def _generated(op: ops.Operator) -> Columns:
    """`text` where an operator reads anything of what was generated, and does not add to it."""
    adds = isinstance(op, ops.Generate | ops.Say | ops.SetContext)
    return frozenset() if adds or not state_access(op).reads & GENERATED else frozenset({"text"})


def check_code(plan: PhysicalPlan, allowed: CodePermission) -> None:
    """Raises UsageError where a plan runs code that a model writes, unless the caller has `allowed` it."""
    for op in (node.op for node in everything(plan.ops)):
        if isinstance(op, ops.Passes):
            check_permission(f"`{plan.name}` runs code that a model writes, by `{op.named}`", allowed)


def check_permission(what: str, allowed: CodePermission) -> None:
    """Raises UsageError for what runs code of a model, unless that is allowed, and walled in where it must be."""
    if not allowed:
        help = "`--allow-code` allows it, in Python `qp.using(allow_code=True)`; it runs in a sandbox, with limits"
        raise UsageError(what, help)
    if allowed == UNCONFINED:
        return
    from qpdsl.executor.runtime.sandbox.run import refusal

    lacking = refusal()
    if lacking is not None:
        help = f"`--allow-code={UNCONFINED}` runs it with what walls there are; `qpdsl check --sandbox` lists them"
        raise UsageError(f"{what}; {lacking}", help)


def _holds(name: str, value: Value) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
        return False
    return RANGES[name].holds(value)
