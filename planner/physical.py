"""The physical plan: operators with an implementation, an equivalence class and an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

from qpdsl.grammar import ast
from qpdsl.planner.logical import Parameter
from qpdsl.planner.ops import Operator

Equivalence = OneOf["exact", "epsilon", "lossy"]


@dataclass(frozen=True, slots=True)
class PhysicalOp:
    """One operator as it will run.

    `id` is stable for a program ("0", "1", "3.0" for the first operator of operator 3's body, "3.1.0" for that of its
    second arm). `rows` estimates the rows it makes in all, over the rounds of an enclosing `repeat`, None where that
    hangs on a parameter without a default. `body` is what a `repeat` runs; `arms` what a `branch` does, where an arm
    without operators passes the rows as they are.
    """

    id: str
    op: Operator
    implementation: str
    equivalence: Equivalence
    rows: float | None
    inputs: tuple[str, ...]
    columns: Mapping[str, str]
    body: tuple[PhysicalOp, ...] = ()
    arms: tuple[tuple[PhysicalOp, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Operators in running order; the last one's rows are the program's.

    A parameter's `default` is the value that the estimates go by; `declared` holds the defaults of the program's text.
    `equivalence` is what the plan keeps to, `within` what the program permits; `prefer` is its λ, if it has one.
    """

    name: str
    source_name: str
    params: tuple[Parameter, ...]
    declared: Mapping[str, ast.Expr | None]
    models: Mapping[str, str]
    ops: tuple[PhysicalOp, ...]
    returns: str
    score_column: str | None
    equivalence: Equivalence
    within: str = "exact"
    prefer: float | None = None
