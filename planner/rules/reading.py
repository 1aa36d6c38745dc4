"""Which columns an operator reads, and which columns are left when one is taken out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qpdsl.grammar.words import COLUMNS
from qpdsl.planner import ops
from qpdsl.planner.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.reads import column_expressions, made_column, named_columns, names
from qpdsl.planner.rules.tree import Chain, with_inner

Columns = frozenset[str]


def reads(node: PhysicalOp) -> Columns:
    """The columns that an operator reads of the rows it gets, those inside it aside.

    A Python function can ask for all columns of a row, and whether it does is not known before it runs.
    """
    if isinstance(node.op, (ops.PythonScore, ops.PythonExtract)):
        return frozenset(node.columns)
    expressions = {name.id for expr in column_expressions(node.op) for name in names(expr)}
    return frozenset({*expressions, *named_columns(node.op)} & set(node.columns))


def reported(plan: PhysicalPlan) -> Columns:
    """The columns of the last rows that somebody looks at when the program has run, its value aside."""
    last = plan.ops[-1].columns
    return frozenset(last if plan.reads is None else set(plan.reads) & set(last))


def with_columns(chain: Chain, before: Mapping[str, str]) -> Chain:
    """The operators with the columns that they have now, where the first gets those of `before`."""
    made: list[PhysicalOp] = []
    for node in chain:
        body = with_columns(node.body, before)
        arms = tuple(with_columns(arm, before) for arm in node.arms)
        node = with_inner(node, body, arms)
        left = {*before, *_made(node)}
        columns = {name: type_ for name, type_ in node.columns.items() if name in left}
        if len(columns) < len(node.columns):
            node = replace(node, columns=columns)
        made.append(node)
        before = node.columns
    return tuple(made)


def _made(node: PhysicalOp) -> set[str]:
    made = made_column(node.op)
    found = set() if made is None else {made}
    if isinstance(node.op, ops.SetContext):
        found |= set(COLUMNS)
    for inner in (node.body, *node.arms):
        found |= set(inner[-1].columns) if inner else set()
    return found
