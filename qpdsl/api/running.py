"""One run of a program, in the thread that runs programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from qpdsl.api.admission import Gate
from qpdsl.api.background import driven
from qpdsl.api.results import Result, Tokens
from qpdsl.executor.runtime.functions import PythonFunction
from qpdsl.planner.expr import Value
from qpdsl.planner.physical import PhysicalPlan
from qpdsl.session import Session

R = TypeVar("R")
OnToken = Callable[[tuple[int, ...], int, str], None]


async def run(
    session: Session,
    plan: PhysicalPlan,
    arguments: Mapping[str, Value],
    seed: int,
    functions: Mapping[str, PythonFunction],
    convert: Callable[[Any], R] | None,
    id: str,
    index: int,
    on_token: OnToken | None = None,
    gate: Gate | None = None,
) -> Result[R]:
    """Loads the models that the plan needs, and runs it when `gate` lets it. Raises ModelError."""
    session.load(plan)
    work = session.run(plan, arguments, seed, id, functions=functions, on_token=on_token)
    found = await driven(session, work if gate is None else gate.run(session, work))
    value: Any = found.value
    error = found.error
    if error is None and convert is not None:
        try:
            value = convert(value)
        except ValueError as invalid:  # pydantic's ValidationError is one
            error = f"the output is not valid: {invalid}"
    return Result(
        score=found.score,
        rows=tuple(dict(row.columns) for row in found.rows),
        tokens=Tokens(found.prompt_tokens, found.sampled_tokens),
        near_ties=found.near_ties,
        seconds=found.seconds,
        error=error,
        index=index,
        id=id,
        _value=value,
    )
