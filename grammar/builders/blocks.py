"""Blocks: the stages between two braces, and the parts of a program that are left out of its tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import MAX_DEPTH, is_shallow
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.leaves import span_of
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import STAGES


@dataclass(slots=True)
class StageBlock:
    """What stands between two braces: stages, and blocks without a head."""

    items: list[Any]
    span: Span


class BlockBuilder:
    """`headless` holds the offsets of braces whose head was faulty and is blanked: their blocks need no second error.

    `gaps` holds the parts that are left out, and is added to.
    """

    def __init__(self, faults: Faults, headless: AbstractSet[int], gaps: Iterable[Span]) -> None:
        self.faults = faults
        self.headless = headless
        self.gaps = list(gaps)

    def block(self, meta: Any, children: list[Any]) -> StageBlock:
        return StageBlock(children, span_of(meta))

    def body(self, block: StageBlock, empty: str, span: Span) -> tuple[ast.Stage, ...]:
        """The stages of a block. One without stages is reported: `empty` is the message, `span` its place."""
        stages = tuple(self.stages(block.items))
        if not stages and not self.in_gap(block.span):
            self.faults.report("QP121", empty, span)
        return stages

    def stages(self, items: list[Any]) -> Iterator[ast.Stage]:
        """The stages of a block; those of a block without a head stand in its place."""
        for item in items:
            if isinstance(item, StageBlock):
                message = "a block belongs to a stage such as `repeat`, `branch` or `if`"
                self.report_headless(item, message, STAGES["repeat"].usage)
                yield from self.stages(item.items)
            elif self.is_shallow(item):
                yield item

    def report_headless(self, block: StageBlock, message: str, usage: str) -> None:
        """A block that no stage or declaration stands before."""
        self.gaps.append(block.span)
        if block.span.start not in self.headless:
            span, notes = Span(block.span.start, block.span.start + 1), (f"form: {usage}",)
            self.faults.report("QP122", message, span, "nothing says what this block is for", notes=notes)

    def in_gap(self, span: Span) -> bool:
        """Whether something was left out within a span."""
        return any(span.start <= gap.start < span.end for gap in self.gaps)

    def is_shallow(self, node: ast.Node) -> bool:
        """Whether a node can be walked; one that nests too deep is reported, and its place is a gap.

        Long chains of operators nest to the left.
        """
        if is_shallow(node):
            return True
        start = Span(node.span.start, node.span.start + 1)
        self.faults.report("QP103", f"this nests over {MAX_DEPTH} deep", start, "from here")
        self.gaps.append(node.span)
        return False
