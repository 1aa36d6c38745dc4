"""Stage options that arguments put out of range, found before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.arguments import KINDS, ArgumentError
from qpdsl.errors import UsageError
from qpdsl.executor.runtime.sandbox.permission import UNCONFINED, CodePermission
from qpdsl.grammar import ast
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.options import LARGEST, RANGES
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.plan.reads import is_same_for_all
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
