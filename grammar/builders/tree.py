"""A whole parse tree to a syntax tree: each node goes to the builder of its rule, children before their parents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

from lark import Token, Tree

from qpdsl.grammar.builders.blocks import BlockBuilder
from qpdsl.grammar.builders.clauses import ClauseBuilder
from qpdsl.grammar.builders.declarations import DeclarationBuilder
from qpdsl.grammar.builders.expressions import ExpressionBuilder
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.forms import FormBuilder
from qpdsl.grammar.builders.leaves import LeafBuilder
from qpdsl.grammar.builders.options import OptionBuilder
from qpdsl.grammar.builders.stages import StageBuilder
from qpdsl.grammar.builders.types import TypeBuilder
from qpdsl.grammar.builders.verifier_forms import VerifierFormBuilder
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.source import Span

# What builds a node: from the place of its text (lark's `Meta`) and what its children became.
Rule = Callable[[Any, list[Any]], Any]


class TreeBuilder:
    """The builders of one text. `headless` and `gaps` are those of `BlockBuilder`."""

    def __init__(self, headless: AbstractSet[int], gaps: Iterable[Span]) -> None:
        self._faults = faults = Faults()
        self._blocks = blocks = BlockBuilder(faults, headless, gaps)
        leaves = LeafBuilder(faults)
        options = OptionBuilder(faults, leaves)
        forms = FormBuilder(faults, leaves)
        verifiers = VerifierFormBuilder(faults, leaves, forms, options)
        clauses = ClauseBuilder(faults, leaves, forms)
        builders = (
            DeclarationBuilder(leaves, options, clauses, blocks),
            StageBuilder(faults, leaves, options, verifiers, clauses, blocks),
            clauses,
            options,
            forms,
            verifiers,
            TypeBuilder(faults, leaves, forms),
            ExpressionBuilder(faults, leaves),
            blocks,
            leaves,
        )
        self._rules: dict[str, Rule] = {}
        for builder in builders:
            methods = _methods(type(builder))  # type: ignore[arg-type]  # mypy takes no class for hashable
            self._rules.update({method: getattr(builder, method) for method in methods})

    @property
    def faults(self) -> list[Diagnostic]:
        return self._faults.diagnostics

    @property
    def gaps(self) -> tuple[Span, ...]:
        """The parts of the text that are not in the tree."""
        return tuple(self._blocks.gaps)

    def build(self, tree: Tree[Token]) -> tuple[Any, ...]:
        """The declarations of a file, or the stages of a pipeline, built in reading order and without recursion."""
        pending, order = [tree], []
        while pending:
            node = pending.pop()
            order.append(node)
            pending += [child for child in node.children if isinstance(child, Tree)]
        rules = self._rules
        parts: dict[int, Any] = {}
        while order:
            node = order.pop()
            children = [parts.pop(id(child)) if isinstance(child, Tree) else child for child in node.children]
            parts[id(node)] = rules[node.data](node.meta, children)
        items: tuple[Any, ...] = parts[id(tree)]
        return items


@cache
def _methods(builder: type) -> tuple[str, ...]:
    """The public methods of a builder: its rules, and a few others, which no node of a tree is named for."""
    return tuple(name for name in vars(builder) if not name.startswith("_"))
