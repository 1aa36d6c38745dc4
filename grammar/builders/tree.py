"""Declarations, and a whole parse tree to a syntax tree: each node to the method of its rule, children first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lark import Token, Tree

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.builders.expressions import ExpressionBuilder, at, span_of
from qpdsl.grammar.builders.stages import BlockBuilder, StageBlock, StageBuilder
from qpdsl.grammar.builders.types import ClauseBuilder, TypeBuilder
from qpdsl.grammar.model_id import NO_THOUGHTS, adapter_of, think_of, thought_marks
from qpdsl.grammar.words import VERIFIER_KINDS

# What builds a node: from the place of its text (lark's `Meta`) and what its children became.
Rule = Callable[[Any, list[Any]], Any]


class DeclarationBuilder(ClauseBuilder, BlockBuilder):
    """Builds the items of a text: the declarations of a file, or the stages of a pipeline."""

    def file(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        for block in (child for child in children if isinstance(child, StageBlock)):
            usage = "program NAME(PARAMETER: TYPE) -> text { … }"
            self.report_headless(block, "a block belongs to a program", usage)
        return tuple(child for child in children if not isinstance(child, StageBlock))

    def pipeline(self, meta: Any, children: list[Any]) -> tuple[ast.Stage, ...]:
        return tuple(self.stages(children))

    def use(self, meta: Any, children: list[Token]) -> ast.Use:
        path, alias = children
        return ast.Use(self._plain(path, "a path"), None if alias is None else str(alias), span=span_of(meta))

    def model(self, meta: Any, children: list[Any]) -> ast.Model:
        name, quoted_id, *options = children
        id = self._plain(quoted_id, "a model id")
        values = self.option_values("model", options)
        kind = values.get("kind")
        if kind is not None:
            kind = self.word("kind", kind, VERIFIER_KINDS, "QP127", "not a kind of verifier")
        adapter = None
        if "adapter" in values:
            adapter = self.text_of(values["adapter"], "an adapter")
            if adapter_of(id) is not None:
                self.report_repeated("option `adapter`", values["adapter"].span, at(quoted_id))
        think = None
        if "think" in values:
            think = self._think(values["think"])
            if think_of(id) is not None:
                self.report_repeated("option `think`", values["think"].span, at(quoted_id))
        return ast.Model(str(name), id, kind, adapter, think, span=span_of(meta), name_span=at(name))

    def _think(self, value: ast.Expr) -> str | None:
        """What a model is said to think between; None where that is faulty, which is reported."""
        if isinstance(value, ast.Literal) and value.value is None:
            return NO_THOUGHTS
        think = self.text_of(value, "`think`")
        try:
            thought_marks(think or NO_THOUGHTS)
        except ValueError as error:
            self.report("QP128", f"`think` {error}", value.span, "not two marks")
            return None
        return think

    def schema(self, meta: Any, children: list[Any]) -> ast.Schema:
        name, body = children
        if isinstance(body, ast.RecordType):
            return ast.Schema(str(name), body, span=span_of(meta), name_span=at(name))
        path = self._plain(body, "a path")
        return ast.Schema(str(name), path=path, path_span=at(body), span=span_of(meta), name_span=at(name))

    def program(self, meta: Any, children: list[Any]) -> ast.Program:
        name, params, returns, *clauses, block = children
        body = self.body(block, f"program `{name}` has no stages", at(name))
        values = self.clause_values(clauses)
        type_, optional = returns or (None, False)
        values["optional"] = optional
        return ast.Program(str(name), params or (), type_, body, **values, span=span_of(meta), name_span=at(name))

    def params(self, meta: Any, children: list[Any]) -> tuple[ast.Param, ...]:
        return tuple(children)

    def param(self, meta: Any, children: list[Any]) -> ast.Param:
        name, type_, optional, default = children
        if default is not None and not self.is_shallow(default):
            default = None
        default = None if default is None else self.width(default)
        return ast.Param(str(name), type_, default, optional is not None, span=span_of(meta), name_span=at(name))

    def _plain(self, token: Token, what: str) -> str:
        return self.plain(self.string(token), what)


class TreeBuilder(StageBuilder, DeclarationBuilder, TypeBuilder, ExpressionBuilder):
    """The builder of one text; for `headless` and `gaps` see `BlockBuilder`."""

    def build(self, tree: Tree[Token]) -> tuple[Any, ...]:
        """The declarations of a file, or the stages of a pipeline, built in reading order and without recursion."""
        pending, order = [tree], []
        while pending:
            node = pending.pop()
            order.append(node)
            pending += [child for child in node.children if isinstance(child, Tree)]
        parts: dict[int, Any] = {}
        while order:
            node = order.pop()
            children = [parts.pop(id(child)) if isinstance(child, Tree) else child for child in node.children]
            parts[id(node)] = self._rule(node.data)(node.meta, children)
        items: tuple[Any, ...] = parts[id(tree)]
        return items

    def _rule(self, name: str) -> Rule:
        """The method of a rule's name; a stage that has none is built as it is declared."""
        rule: Rule | None = getattr(self, name, None)
        return rule or partial(self.stage, STAGES[name.removesuffix("_")])
