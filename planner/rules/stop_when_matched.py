"""Ends a sample as soon as the match of a regex in it is final, if nothing else is read from the sample.

What else an operator may read of a sample, in columns or beside them, is asked of `planner/plan/reads.py`. The regex is
searched from the beginning of what was generated since the context was set, so the `generate` must be the first after
its context. The matcher itself is `grammar/literals/early_match.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.literals.early_match import early_matcher
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import (
    GENERATED,
    GENERATED_COLUMNS,
    Columns,
    all_reads,
    inner_reads,
    reported,
    whole_state_access,
)
from qpdsl.planner.plan.rule import Chain, Rule, decide, with_inner, with_ops

NAME = "stop_when_matched"


def stop_when_matched(plan: PhysicalPlan) -> PhysicalPlan:
    """Looks at every `generate` outside of `repeat`, whose later rounds would go on from what is left out."""
    return with_ops(plan, _chain(plan.ops, (), reported(plan), fresh=True))


def _chain(chain: Chain, after: Chain, shown: Columns, *, fresh: bool) -> Chain:
    """The operators of a chain, behind which those of `after` run; at the end the columns `shown` are looked at.

    `fresh` says that nothing was generated in the context of the rows that come in.
    """
    nodes = []
    for index, node in enumerate(chain):
        rest = (*chain[index + 1 :], *after)
        if node.arms:
            arms = tuple(_chain(arm, rest, shown, fresh=fresh) for arm in node.arms)
            node = with_inner(node, (), arms)
        elif isinstance(node.op, ops.Call):
            node = with_inner(node, _chain(node.body, (), inner_reads(node), fresh=True), ())
        pattern = _only_read(node, rest, shown) if fresh else None
        if pattern is not None and isinstance(node.strategy, GenerateStrategy):
            node = decide(node, replace(node.strategy, until=pattern), NAME)
        fresh = _is_fresh_after(node, fresh=fresh)
        nodes.append(node)
    return tuple(nodes)


def _is_fresh_after(node: PhysicalOp, *, fresh: bool) -> bool:
    """Whether it is sure that nothing was generated in the context of the rows that an operator makes."""
    if isinstance(node.op, ops.SetContext):
        return True
    return fresh and "text" not in whole_state_access(node).changes


def _only_read(node: PhysicalOp, rest: Chain, shown: Columns) -> ast.Regex | None:
    """The pattern that is all that `rest` reads of what a `generate` makes, where it can be followed."""
    op = node.op
    # What could match may be dropped with a stop that it begins.
    if not isinstance(op, ops.Generate) or op.constraint is not None or op.stop_text == "drop":
        return None
    of_the_sample = GENERATED_COLUMNS | ({op.into.id} if op.into is not None else set())
    pattern: ast.Regex | None = None
    for later in rest:
        first = isinstance(later.op, ops.Extract) and later.op.which == "first" and later.op.of is None
        if first and isinstance(later.op, ops.Extract) and isinstance(later.op.pattern, ast.Regex) and pattern is None:
            pattern = later.op.pattern
            # A column that the program sets itself says nothing more of the sample.
            of_the_sample = of_the_sample - {later.op.column.id}
        elif whole_state_access(later).reads & GENERATED or all_reads(later) & of_the_sample:
            return None
    if pattern is None or of_the_sample & shown:
        return None
    return pattern if early_matcher(pattern.pattern) is not None else None


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, GenerateStrategy) and node.strategy.until is not None:
        yield "until matched"


RULE = Rule(
    NAME,
    "end a sample once everything read from it has matched and nothing can change the match",
    "exact",
    "after unread columns are dropped, which would have read the text",
    stop_when_matched,
    _words,
)
